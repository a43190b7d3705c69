// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"bytes"
	"slices"
	"strings"
)

// cover stands in a rank's output where the token was.
const cover = '*'

// secret is the job's token as it may appear in what a rank prints: a program
// that shows its environment, as many do when they fail, must not put it into a
// log or a failure report.
type secret [][]byte

func newSecret(token string) secret {
	var s secret
	for _, text := range []string{token, strings.ToLower(token), strings.ToUpper(token)} {
		if len(text) > 0 && !slices.ContainsFunc(s, func(b []byte) bool { return string(b) == text }) {
			s = append(s, []byte(text))
		}
	}
	return s
}

// hide covers the token wherever it is in b.
func (s secret) hide(b []byte) {
	for _, text := range s {
		for rest := b; ; {
			i := bytes.Index(rest, text)
			if i < 0 {
				break
			}
			for k := range text {
				rest[i+k] = cover
			}
			rest = rest[i+len(text):]
		}
	}
}
