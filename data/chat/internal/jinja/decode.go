// SPDX-License-Identifier: Apache-2.0

package jinja

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
)

// maxJSON limits how deep values may lie in each other.
const maxJSON = 64

// Decode reads a value from JSON, with the order of its keys. What a template
// cannot be given is an error: half of a character that JSON writes as two, or
// bytes that are no UTF-8.
func Decode(raw []byte) (any, error) {
	if !utf8.Valid(raw) {
		return nil, fmt.Errorf("is no UTF-8")
	}
	if err := checkEscapes(raw); err != nil {
		return nil, err
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.UseNumber()
	v, err := decode(d, 0)
	if err != nil {
		return nil, err
	}
	if d.More() {
		return nil, fmt.Errorf("there is more after the value")
	}
	return v, nil
}

func decode(d *json.Decoder, depth int) (any, error) {
	if depth > maxJSON {
		return nil, fmt.Errorf("more than %d values in each other", maxJSON)
	}
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Number:
		return decodeNumber(t.String())
	case json.Delim:
		if t == '[' {
			list := List{}
			for d.More() {
				v, err := decode(d, depth+1)
				if err != nil {
					return nil, err
				}
				list = append(list, v)
			}
			_, err := d.Token()
			return list, err
		}
		dict := new(Dict)
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := decode(d, depth+1)
			if err != nil {
				return nil, err
			}
			dict.Set(key.(string), v)
		}
		_, err := d.Token()
		return dict, err
	default: // nil, bool, string
		return t, nil
	}
}

func decodeNumber(s string) (any, error) {
	if !strings.ContainsAny(s, ".eE") {
		if i, err := strconv.ParseInt(s, 10, 64); err == nil {
			return i, nil
		}
		if i, ok := new(big.Int).SetString(s, 10); ok && len(s) <= 4300 { // Python's limit
			return i, nil
		}
		return nil, fmt.Errorf("the number %.20s… is too large", s)
	}
	f, err := strconv.ParseFloat(s, 64)
	if err != nil && f == 0 {
		return nil, fmt.Errorf("%s is no number", s)
	}
	return f, nil // what is too large is infinite, as in Python
}

// checkEscapes finds halves of characters, which Go would replace in silence.
func checkEscapes(raw []byte) error {
	unit := func(i int) (rune, bool) {
		if i+6 > len(raw) || raw[i] != '\\' || raw[i+1] != 'u' {
			return 0, false
		}
		n, err := strconv.ParseUint(string(raw[i+2:i+6]), 16, 32)
		return rune(n), err == nil
	}
	for i := 0; i < len(raw); i++ {
		if raw[i] != '\\' {
			continue
		}
		r, ok := unit(i)
		if !ok {
			i++ // the character after a backslash
			continue
		}
		i += 5
		switch {
		case r >= 0xdc00 && r < 0xe000:
			return fmt.Errorf("\\u%04x is half of a character", r)
		case r >= 0xd800 && r < 0xdc00:
			if low, ok := unit(i + 1); !ok || low < 0xdc00 || low >= 0xe000 {
				return fmt.Errorf("\\u%04x is half of a character", r)
			}
			i += 6
		}
	}
	return nil
}
