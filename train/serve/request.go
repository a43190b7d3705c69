// SPDX-License-Identifier: Apache-2.0

package serve

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// body is a JSON object whose fields are taken one after the other. What is left at the end
// is not known.
type body struct {
	fields map[string]json.RawMessage
}

// readBody reads the body of a request.
func readBody(r *http.Request) (body, error) {
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return body{}, err
	}
	return parseBody(text)
}

func parseBody(text []byte) (b body, err error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if err := d.Decode(&b.fields); err != nil {
		return b, &apiError{status: http.StatusBadRequest, Message: fmt.Sprintf("the body is no JSON object: %v", err)}
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return b, &apiError{status: http.StatusBadRequest, Message: "there is more after the JSON object of the body"}
	}
	if b.fields == nil {
		return b, &apiError{status: http.StatusBadRequest, Message: "the body is no JSON object"}
	}
	for name, raw := range b.fields {
		if string(raw) == "null" {
			delete(b.fields, name)
		}
	}
	return b, nil
}

// take puts a field into v, and says whether it is there.
func (b body) take(name string, v any) (bool, error) {
	raw, ok := b.fields[name]
	delete(b.fields, name)
	if !ok {
		return false, nil
	}
	if err := json.Unmarshal(raw, v); err != nil {
		return false, badField(name, "%s: %v", short(raw), err)
	}
	return true, nil
}

// number takes a number between two others.
func (b body) number(name string, v *float64, least, most float64) error {
	was := *v
	if ok, err := b.take(name, v); err != nil || !ok {
		return err
	}
	if !(*v >= least && *v <= most) {
		got := *v
		*v = was
		return badField(name, "it is %v, want %v to %v", got, least, most)
	}
	return nil
}

// whole takes a whole number.
func (b body) whole(name string, v *int, least, most int) error {
	ok, err := b.take(name, v)
	if err != nil || !ok {
		return err
	}
	if *v < least || *v > most {
		return badField(name, "it is %d, want %d to %d", *v, least, most)
	}
	return nil
}

// texts takes a text or a list of texts.
func (b body) texts(name string, most int) (texts []string, err error) {
	raw, ok := b.fields[name]
	delete(b.fields, name)
	if !ok {
		return nil, nil
	}
	var one string
	if json.Unmarshal(raw, &one) == nil {
		return []string{one}, nil
	}
	if err := json.Unmarshal(raw, &texts); err != nil {
		return nil, badField(name, "it is %s, want text or a list of texts", short(raw))
	}
	if len(texts) > most {
		return nil, badField(name, "there are %d, want %d at most", len(texts), most)
	}
	return texts, nil
}

// without drops fields that do not change what is computed.
func (b body) without(names ...string) {
	for _, name := range names {
		delete(b.fields, name)
	}
}

// only drops fields that have one of the values which change nothing.
func (b body) only(name string, values ...string) {
	var v any
	if raw, ok := b.fields[name]; ok && json.Unmarshal(raw, &v) == nil {
		if text, err := json.Marshal(v); err == nil && slices.Contains(values, string(text)) {
			delete(b.fields, name)
		}
	}
}

// rest refuses what is left.
func (b body) rest() error {
	names := slices.Sorted(maps.Keys(b.fields))
	if len(names) == 0 {
		return nil
	}
	code := "unsupported_parameter"
	return &apiError{
		status: http.StatusBadRequest, Param: &names[0], Code: &code,
		Message: fmt.Sprintf("this server does not know, or does not honour, what the request asks for by %s = %s: leave it out", strings.Join(names, ", "), short(b.fields[names[0]])),
	}
}

func short(raw []byte) string {
	const most = 60
	if len(raw) > most {
		return strings.ToValidUTF8(string(raw[:most]), "") + "…"
	}
	return string(raw)
}
