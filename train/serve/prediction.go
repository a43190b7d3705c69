// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/cohort-ml/cohort/data/vision"
	"github.com/cohort-ml/cohort/train"
	"github.com/cohort-ml/cohort/train/predict"
)

// inputsOfTurn is how many inputs are computed before another request has its turn.
const inputsOfTurn = 32

// embeddings answers requests for vectors of texts.
func (s *Server) embeddings(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	if err := s.begin(b, "embed"); err != nil {
		return err
	}
	texts, err := b.texts("input", s.o.MaxInputs)
	if err != nil {
		return err
	}
	if len(texts) == 0 {
		return badField("input", "there is no text")
	}
	format := "float"
	if _, err := b.take("encoding_format", &format); err != nil {
		return err
	}
	if format != "float" && format != "base64" {
		return badField("encoding_format", "it is %q, want float or base64", format)
	}
	width := s.m.Vectors.Width()
	b.only("dimensions", fmt.Sprint(width))
	b.without("user")
	if err := b.rest(); err != nil {
		return err
	}
	ready := make([]train.Prepared, len(texts))
	numTokens := 0
	for i, text := range texts {
		if ready[i], err = s.m.Prepare(train.Input{Text: text}); err != nil {
			return badField("input", "text %d: %v", i, err)
		}
		numTokens += ready[i].NumTokens()
	}
	data := make([]any, 0, len(texts))
	for lo := 0; lo < len(ready); lo += inputsOfTurn {
		var vectors [][]float32
		err := s.turns.do(r.Context(), func() (err error) {
			vectors, err = s.m.Vectors.EmbedPrepared(r.Context(), ready[lo:min(lo+inputsOfTurn, len(ready))], inputsOfTurn)
			return err
		})
		if err != nil {
			return err
		}
		for _, v := range vectors {
			data = append(data, map[string]any{"object": "embedding", "index": len(data), "embedding": inFormat(v, format)})
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{
		"object": "list", "data": data, "model": s.o.Name, "usage": map[string]any{"prompt_tokens": numTokens, "total_tokens": numTokens},
	})
	return nil
}

// inFormat writes a vector as numbers, or as the bytes of its numbers in base64.
func inFormat(v []float32, format string) any {
	if format == "float" {
		return v
	}
	var b bytes.Buffer
	_ = binary.Write(&b, binary.LittleEndian, v) // to memory
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

// predictions answers requests for classes, numbers and labels. An input is a text, a list of
// words, or an object: a row of a table by the names of its columns, {"text": …}, or
// {"image": …} with a JPEG or PNG in base64.
func (s *Server) predictions(w http.ResponseWriter, r *http.Request) error {
	b, err := readBody(r)
	if err != nil {
		return err
	}
	if err := s.begin(b, "vision", "rec", "classify"); err != nil {
		return err
	}
	var raw []json.RawMessage
	if _, err := b.take("inputs", &raw); err != nil {
		return err
	}
	if len(raw) == 0 || len(raw) > s.o.MaxInputs {
		return badField("inputs", "there are %d, want 1 to %d", len(raw), s.o.MaxInputs)
	}
	top := 0
	if err := b.whole("top", &top, 0, 1<<16); err != nil {
		return err
	}
	if err := b.rest(); err != nil {
		return err
	}
	data := make([]any, 0, len(raw))
	for lo := 0; lo < len(raw); lo += inputsOfTurn { // few images are decoded at a time
		some := raw[lo:min(lo+inputsOfTurn, len(raw))]
		ready := make([]train.Prepared, len(some))
		for i, text := range some {
			if ready[i], err = s.prepare(text); err != nil {
				return s.badInput(lo+i, err)
			}
		}
		var told []train.Prediction
		err := s.turns.do(r.Context(), func() (err error) {
			told, err = s.m.Run(r.Context(), ready, inputsOfTurn)
			return err
		})
		if err != nil {
			return err
		}
		for _, p := range told {
			data = append(data, predict.Fields(s.m, p, top))
		}
	}
	writeJSON(w, http.StatusOK, map[string]any{"object": "list", "data": data, "model": s.o.Name})
	return nil
}

func (s *Server) badInput(i int, err error) error {
	field := fmt.Sprintf("inputs[%d]", i)
	if f := (*train.FieldError)(nil); errors.As(err, &f) && f.Field != "" {
		field += "." + f.Field
		err = errors.New(f.Detail)
	}
	return badField(field, "%v", err)
}

// prepare makes an input of JSON.
func (s *Server) prepare(raw json.RawMessage) (p train.Prepared, err error) {
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return p, err
	}
	var in train.Input
	switch v := v.(type) {
	case string:
		in.Text = v
	case []any:
		for i, word := range v {
			text, ok := word.(string)
			if !ok {
				return p, &train.FieldError{Field: fmt.Sprint(i), Detail: "want a word"}
			}
			in.Words = append(in.Words, text)
		}
	case map[string]any:
		if in, err = s.ofObject(v); err != nil {
			return p, err
		}
	default:
		return p, fmt.Errorf("it is %s, want a text, a list of words or an object", short(raw))
	}
	switch {
	case s.m.Images != nil && in.Image.Pix == nil:
		return p, errors.New(`want an object {"image": …} with a JPEG or PNG in base64`)
	case s.m.Rows != nil && in.Row == nil:
		return p, errors.New("want an object with the columns of a row")
	case s.m.Texts != nil && in.Words != nil && s.m.Kind() != "tags":
		return p, errors.New("want a text, and it is a list of words")
	}
	return s.m.Prepare(in)
}

// ofObject makes an input of an object.
func (s *Server) ofObject(v map[string]any) (in train.Input, err error) {
	if s.m.Rows != nil {
		for name, value := range v {
			if n, ok := value.(json.Number); ok {
				v[name] = n.String()
			}
		}
		return train.Input{Row: v}, nil
	}
	want := "text"
	if s.m.Images != nil {
		want = "image"
	}
	for name := range v {
		if name != want {
			return in, &train.FieldError{Field: name, Detail: "it is not known; want " + want}
		}
	}
	text, ok := v[want].(string)
	if !ok {
		return in, &train.FieldError{Field: want, Detail: "it is missing, or no text"}
	}
	if want == "text" {
		return train.Input{Text: text}, nil
	}
	image, err := base64.StdEncoding.DecodeString(text)
	if err != nil {
		return in, &train.FieldError{Field: want, Detail: err.Error()}
	}
	if in.Image, err = vision.Decode(image); err != nil {
		return in, &train.FieldError{Field: want, Detail: err.Error()}
	}
	return in, nil
}
