// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"runtime/debug"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/train"
)

// Options say how a [Server] answers. The zero value of a limit is its default.
type Options struct {
	Name  string // of the model, by which requests ask for it
	Token string // that a client must know; "" is none, which is for this machine alone

	MaxBytes    int64         // of the body of a request; 8 MiB
	MaxRequests int           // under way at a time; 32
	MaxTokens   int           // that a text gets at most, and gets where a chat names no number; 1,024
	MaxInputs   int           // texts or inputs of a request; 2,048
	Timeout     time.Duration // of a request; 10 minutes

	Created time.Time                        // of the model, for clients that ask
	Log     func(format string, args ...any) // is told of requests; may be nil
}

// Server answers requests with a model.
type Server struct {
	m        *train.Model
	o        Options
	turns    turns
	underWay chan struct{}
}

// New returns a server of a model.
func New(m *train.Model, o Options) (*Server, error) {
	if m.LM != nil {
		if err := m.LM.Generation.Refused(); err != nil {
			return nil, err
		}
	}
	for _, limit := range []struct {
		value *int
		usual int
	}{{&o.MaxRequests, 32}, {&o.MaxTokens, 1024}, {&o.MaxInputs, 2048}} {
		if *limit.value < 0 {
			return nil, fmt.Errorf("serve: a limit is %d, want more than 0", *limit.value)
		}
		if *limit.value == 0 {
			*limit.value = limit.usual
		}
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = 8 << 20
	}
	if o.Timeout == 0 {
		o.Timeout = 10 * time.Minute
	}
	if o.MaxBytes < 0 || o.Timeout < 0 {
		return nil, fmt.Errorf("serve: limits of %d bytes and %v, want more than 0", o.MaxBytes, o.Timeout)
	}
	if o.Log == nil {
		o.Log = func(string, ...any) {}
	}
	return &Server{m: m, o: o, underWay: make(chan struct{}, o.MaxRequests)}, nil
}

// Handler returns what answers requests.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.Handle("GET /v1/models", s.guard(s.models))
	mux.Handle("GET /v1/models/{name...}", s.guard(s.oneModel))
	for path, answer := range map[string]func(http.ResponseWriter, *http.Request) error{
		"/v1/completions": s.completions, "/v1/chat/completions": s.chats, "/v1/embeddings": s.embeddings, "/v1/predict": s.predictions,
	} {
		mux.Handle("POST "+path, s.guard(s.limited(answer)))
	}
	mux.Handle("/", s.guard(func(_ http.ResponseWriter, r *http.Request) error {
		return &apiError{status: http.StatusNotFound, Message: fmt.Sprintf("there is no %s %s: there are GET /v1/models and POST /v1/completions, /v1/chat/completions, /v1/embeddings and /v1/predict", r.Method, r.URL.Path)}
	}))
	return mux
}

// Serve answers requests of a listener until ctx ends. Then it waits a moment for those under
// way.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	requests, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	server := &http.Server{
		Handler: s.Handler(), ReadHeaderTimeout: 10 * time.Second, ReadTimeout: time.Minute, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 64 << 10,
		BaseContext: func(net.Listener) context.Context { return requests },
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second)
	defer cancel()
	if err := server.Shutdown(grace); err != nil {
		stop() // what is under way ends with an error
		server.Close()
	}
	<-ended
	return nil
}

// apiError is an error in the words of OpenAI's API.
type apiError struct {
	status  int
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"` // the field that is meant
	Code    *string `json:"code"`
}

func (e *apiError) Error() string { return e.Message }

// badField is the error of a field of a request.
func badField(field, format string, args ...any) error {
	return &apiError{status: http.StatusBadRequest, Message: fmt.Sprintf("%s: %s", field, fmt.Sprintf(format, args...)), Param: &field}
}

// answerError writes an error.
func (s *Server) answerError(w http.ResponseWriter, err error) {
	e := (*apiError)(nil)
	tooLarge := (*http.MaxBytesError)(nil)
	switch {
	case errors.As(err, &e):
	case errors.As(err, &tooLarge):
		e = &apiError{status: http.StatusRequestEntityTooLarge, Message: fmt.Sprintf("the request has more than the %d bytes allowed", tooLarge.Limit)}
	case errors.Is(err, context.DeadlineExceeded):
		e = &apiError{status: http.StatusGatewayTimeout, Message: fmt.Sprintf("the request took longer than the %v allowed", s.o.Timeout)}
	default:
		e = &apiError{status: http.StatusInternalServerError, Message: err.Error()}
	}
	switch {
	case e.Type != "":
	case e.status < 500:
		e.Type = "invalid_request_error"
	default:
		e.Type = "server_error"
	}
	writeJSON(w, e.status, map[string]any{"error": e})
}

func writeJSON(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	_ = e.Encode(v) // a client that has gone
}

// guard lets those in who may ask, and writes errors.
func (s *Server) guard(answer func(http.ResponseWriter, *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begin := time.Now()
		defer func() {
			if p := recover(); p != nil && p != http.ErrAbortHandler {
				s.o.Log("%s %s: panic: %v\n%s", r.Method, r.URL.Path, p, debug.Stack())
				panic(http.ErrAbortHandler)
			} else if p != nil {
				panic(p)
			}
		}()
		err := s.admit(w, r)
		if err == nil {
			err = answer(w, r)
		}
		if err != nil {
			s.answerError(w, err)
			s.o.Log("%s %s: %v", r.Method, r.URL.Path, err)
			return
		}
		s.o.Log("%s %s: %v", r.Method, r.URL.Path, time.Since(begin).Round(time.Millisecond))
	})
}

// admit says whether a client may ask.
func (s *Server) admit(w http.ResponseWriter, r *http.Request) error {
	if s.o.Token != "" {
		got, _ := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		a, b := sha256.Sum256([]byte(got)), sha256.Sum256([]byte(s.o.Token))
		if subtle.ConstantTimeCompare(a[:], b[:]) != 1 {
			w.Header().Set("WWW-Authenticate", "Bearer")
			code := "invalid_api_key"
			return &apiError{status: http.StatusUnauthorized, Message: "the token is missing or wrong: send it as Authorization: Bearer TOKEN (the API key of OpenAI's clients)", Code: &code}
		}
	} else if !isLoopback(r.Host) {
		// A page of a stranger could have a browser of this machine ask, under a name that it
		// has made mean this machine.
		return &apiError{status: http.StatusForbidden, Message: fmt.Sprintf("the host %q is not this machine: without a token, ask for localhost or 127.0.0.1", r.Host)}
	}
	if r.Method == http.MethodPost {
		if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
			return &apiError{status: http.StatusUnsupportedMediaType, Message: fmt.Sprintf("the Content-Type is %q, want application/json", r.Header.Get("Content-Type"))}
		}
	}
	return nil
}

// isLoopback says whether a host, perhaps with a port, is this machine.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// limited bounds a request: its bytes, its time, and how many there are.
func (s *Server) limited(answer func(http.ResponseWriter, *http.Request) error) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		select {
		case s.underWay <- struct{}{}:
		default:
			w.Header().Set("Retry-After", "1")
			code := "rate_limit_exceeded"
			return &apiError{status: http.StatusTooManyRequests, Message: fmt.Sprintf("%d requests are under way, which is the most allowed: try again", s.o.MaxRequests), Type: "rate_limit_error", Code: &code}
		}
		defer func() { <-s.underWay }()
		ctx, cancel := context.WithTimeout(r.Context(), s.o.Timeout)
		defer cancel()
		r = r.WithContext(ctx)
		r.Body = http.MaxBytesReader(w, r.Body, s.o.MaxBytes)
		return answer(w, r)
	}
}

func (s *Server) about() map[string]any {
	return map[string]any{"id": s.o.Name, "object": "model", "created": s.o.Created.Unix(), "owned_by": "cohort", "task": s.m.Task}
}

func (s *Server) models(w http.ResponseWriter, _ *http.Request) error {
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": []any{s.about()}})
	return nil
}

func (s *Server) oneModel(w http.ResponseWriter, r *http.Request) error {
	if err := s.checkName(r.PathValue("name")); err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.about())
	return nil
}

// checkName compares the model that a request asks for with that which is here.
func (s *Server) checkName(name string) error {
	if name == s.o.Name {
		return nil
	}
	field, code := "model", "model_not_found"
	return &apiError{status: http.StatusNotFound, Message: fmt.Sprintf("there is no model %q here: there is %q", name, s.o.Name), Param: &field, Code: &code}
}
