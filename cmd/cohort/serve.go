// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/launch"
	"github.com/cohort-ml/cohort/train/serve"
)

func newServeCommand() *cobra.Command {
	var model modelFlags
	var listen, tokenFile string
	var quiet bool
	o := serve.Options{MaxBytes: 8 << 20, MaxRequests: 32, MaxTokens: 1024, Timeout: 10 * time.Minute}
	cmd := &cobra.Command{
		Use:   "serve --from PLACE",
		Short: "Answer requests over HTTP with a trained model",
		Long: `Answer requests over HTTP with a model of any recipe or folder, in the words of
OpenAI's API: GET /v1/models, and POST /v1/completions, /v1/chat/completions (both
whole or streamed), /v1/embeddings, and /v1/predict for classes, numbers and labels.
It is for trying a model and for small use: passes run one at a time, and requests
take turns.

The server listens on this machine alone. On another address it wants a token, which
clients send as their API key: --token-file, or the environment variable
COHORT_TOKEN. A request with a field that would change the answer and is not honoured
is refused, with the name of the field.`,
		Example: `  cohort serve --from out/lm
  cohort token --file token.txt
  cohort serve --from path/to/qwen --listen 0.0.0.0:8000 --token-file token.txt`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Token, err = readToken(tokenFile); err != nil {
				return usageError{err}
			}
			if o.Token != "" {
				launch.KeepSecrets()
			}
			if o.MaxBytes < 1 || o.MaxRequests < 1 || o.MaxTokens < 1 || o.Timeout <= 0 {
				return usageError{errors.New("--max-bytes, --max-requests, --max-tokens and --timeout must be more than 0")}
			}
			host, _, err := net.SplitHostPort(listen)
			if err != nil {
				return usageError{fmt.Errorf("--listen is %q, want HOST:PORT such as 127.0.0.1:8000", listen)}
			}
			if ip := net.ParseIP(host); o.Token == "" && host != "localhost" && (ip == nil || !ip.IsLoopback()) {
				return usageError{fmt.Errorf("--listen %s: others could ask: give a token (cohort token --file FILE, then --token-file FILE), or listen on 127.0.0.1", listen)}
			}
			m, err := model.load(cmd)
			if err != nil {
				return err
			}
			o.Name = cmp.Or(o.Name, filepath.Base(model.from))
			o.Created = time.Now()
			if !quiet {
				o.Log = func(format string, args ...any) { fmt.Fprintf(cmd.ErrOrStderr(), "cohort: "+format+"\n", args...) }
			}
			s, err := serve.New(m, o)
			if err != nil {
				return err
			}
			l, err := net.Listen("tcp", listen)
			if err != nil {
				return fmt.Errorf("--listen: %w", err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "serving %s (%s) as %s on http://%s/v1; Ctrl-C ends\n", m.Path, m.Task, o.Name, l.Addr())
			ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
			defer stop()
			return s.Serve(ctx, l)
		},
	}
	model.add(cmd, "out/lm")
	f := cmd.Flags()
	f.StringVar(&listen, "listen", "127.0.0.1:8000", "`ADDRESS` to listen on, HOST:PORT; port 0 takes any")
	f.StringVar(&tokenFile, "token-file", "", "`FILE` with the token that clients must know (default: COHORT_TOKEN or COHORT_TOKEN_FILE, if they are set)")
	f.StringVar(&o.Name, "name", "", "`NAME` of the model for clients (default: the last part of --from)")
	f.Int64Var(&o.MaxBytes, "max-bytes", o.MaxBytes, "bytes of a request, at most")
	f.IntVar(&o.MaxRequests, "max-requests", o.MaxRequests, "requests under way at a time; others are told to try again")
	f.IntVar(&o.MaxTokens, "max-tokens", o.MaxTokens, "tokens of a text, at most")
	f.DurationVar(&o.Timeout, "timeout", o.Timeout, "time of a request, at most")
	f.BoolVar(&quiet, "quiet", false, "print no line for each request")
	return cmd
}

// readToken reads the token that clients must know, "" if there is none.
func readToken(file string) (string, error) {
	if file == "" {
		if text := envvar.Token.Text(); text != "" {
			return text, nil
		}
		if file = envvar.TokenFile.Text(); file == "" {
			return "", nil
		}
	}
	text, err := os.ReadFile(file)
	if err != nil {
		return "", fmt.Errorf("--token-file: %w", err)
	}
	token := strings.TrimSpace(string(text))
	const least = 16
	if len(token) < least || len(token) > 4096 || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("--token-file %s: want one token of %d characters or more: cohort token --file makes one", file, least)
	}
	return token, nil
}
