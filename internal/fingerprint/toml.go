// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"bytes"
	"fmt"
	"regexp"

	"github.com/cohort-ml/cohort/internal/config"
)

// TOML returns the fingerprint as a TOML file: one line a key, sections and keys in a fixed
// order, so that a diff of two files is short. All values are strings. The lines of header
// come first, as comments.
func (f *Fingerprint) TOML(header ...string) []byte {
	var b bytes.Buffer
	for _, line := range header {
		fmt.Fprintf(&b, "# %s\n", clean(line))
	}
	for _, name := range Sections() {
		if !f.Has(name) {
			continue
		}
		fmt.Fprintf(&b, "\n[%s]\n", name)
		for _, key := range f.Keys(name) {
			fmt.Fprintf(&b, "%s = %s\n", tomlKey(key), config.TOMLString(f.sections[name][key]))
		}
	}
	return bytes.TrimPrefix(b.Bytes(), []byte("\n"))
}

var bareKey = regexp.MustCompile(`^[A-Za-z0-9_-]+$`)

func tomlKey(key string) string {
	if bareKey.MatchString(key) {
		return key
	}
	return config.TOMLString(key)
}
