// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the tables of docs/doctor.md")

// TestPage: the tables of the page are those of this package.
func TestPage(t *testing.T) {
	path := filepath.Join("..", "..", "docs", "doctor.md")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for name, want := range map[string]string{"checks": CheckTable(), "troubles": TroubleTable()} {
		begin, end := "<!-- "+name+" -->\n", "<!-- end of "+name+" -->"
		i, j := strings.Index(text, begin), strings.Index(text, end)
		if i < 0 || j < i {
			t.Fatalf("%s has no %s before %s", path, begin, end)
		}
		if i += len(begin); text[i:j] == want {
			continue
		}
		if !*update {
			t.Errorf("the table of %s in %s is not the one of the code: run go test ./internal/doctor -run TestPage -update", name, path)
		}
		text = text[:i] + want + text[j:]
	}
	if *update {
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
