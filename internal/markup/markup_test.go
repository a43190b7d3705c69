// SPDX-License-Identifier: Apache-2.0

package markup

import (
	"html/template"
	"strings"
	"testing"
	"unicode/utf8"
)

// FuzzPut: what html/template escapes is escaped, in elements and in attributes.
func FuzzPut(f *testing.F) {
	for _, s := range []string{"plain", `<b>&amp;"'`, "</script>", "\x00\xff", "%s", "`+=", "\u2028"} {
		f.Add(s)
	}
	oracle := template.Must(template.New("").Parse(`<p title="{{.}}">{{.}}</p>`))
	f.Fuzz(func(t *testing.T, value string) {
		var p Page
		p.Put(`<p title="%s">%s</p>`, value, value)
		var got, want strings.Builder
		if _, err := p.WriteTo(&got); err != nil {
			t.Fatal(err)
		}
		if err := oracle.Execute(&want, value); err != nil {
			t.Fatal(err)
		}
		inside := strings.TrimSuffix(strings.TrimPrefix(got.String(), `<p title="`), `</p>`)
		if strings.ContainsAny(inside, `<'`) || strings.Count(inside, `"`) != 1 || strings.Count(inside, ">") != 1 {
			t.Errorf("%q", got.String())
		}
		// The oracle also writes + and NUL in its own way.
		if !strings.ContainsAny(value, "+\x00") && utf8.ValidString(value) && got.String() != want.String() {
			t.Errorf("got %q, want %q", got.String(), want.String())
		}
	})
}

func TestPut(t *testing.T) {
	var p Page
	p.Put("<td>%s<td>%s</td>%s", 3, Raw("<br>"), "100 %")
	var b strings.Builder
	if _, err := p.WriteTo(&b); err != nil || b.String() != "<td>3<td><br></td>100 %" {
		t.Error(b.String(), err)
	}
}
