// SPDX-License-Identifier: Apache-2.0

package cbor

import (
	"reflect"
	"strings"
)

// Hidden returns a field that values of a type have and that does not travel because
// it is not exported, as "Config.mu"; "" if there is none. Fields tagged "-" are left
// out on purpose and do not count.
func (c *Codec) Hidden(t reflect.Type) string {
	return c.hidden(t, map[reflect.Type]bool{})
}

func (c *Codec) hidden(t reflect.Type, seen map[reflect.Type]bool) string {
	if seen[t] || t == timeType || t == anyType {
		return ""
	}
	seen[t] = true
	if c.special != nil {
		if s, err := c.special(t); err == nil && s.Text != "" {
			return ""
		}
	}
	switch t.Kind() {
	case reflect.Map:
		if f := c.hidden(t.Key(), seen); f != "" {
			return f
		}
		return c.hidden(t.Elem(), seen)
	case reflect.Slice, reflect.Array, reflect.Pointer:
		return c.hidden(t.Elem(), seen)
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			name, _, _ := strings.Cut(f.Tag.Get(tagKey), ",")
			switch {
			case name == "-" || f.Name == "_":
			case !f.IsExported():
				return t.Name() + "." + f.Name
			default:
				if inner := c.hidden(f.Type, seen); inner != "" {
					return inner
				}
			}
		}
	}
	return ""
}
