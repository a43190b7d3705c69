// SPDX-License-Identifier: Apache-2.0

package backend

import (
	"errors"
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist/fault"
)

// prefixed is an error with what it was found in before it.
type prefixed struct {
	prefix, group string
	err           error
}

// Within puts before an error what it was found in, which names the group too,
// so that the error need not say it again.
func Within(prefix, group string, err error) error { return &prefixed{prefix, group, err} }

func (e *prefixed) Error() string {
	text := strings.TrimPrefix(e.err.Error(), "dist: ")
	return e.prefix + strings.TrimPrefix(text, fmt.Sprintf("group %q: ", e.group))
}

func (e *prefixed) Unwrap() error { return e.err }

// IsConsequence reports whether an error is about another rank's failure.
func IsConsequence(err error) bool {
	var re *fault.RankError
	return errors.As(err, &re)
}

// RanksText names ranks in a sentence: "rank 1", "ranks 1, 3 and 12 more".
func RanksText(ranks []int) string {
	const most = 16
	if len(ranks) == 1 {
		return fmt.Sprintf("rank %d", ranks[0])
	}
	text := strings.ReplaceAll(strings.Trim(fmt.Sprint(ranks[:min(len(ranks), most)]), "[]"), " ", ", ")
	if rest := len(ranks) - most; rest > 0 {
		text += fmt.Sprintf(" and %d more", rest)
	}
	return "ranks " + text
}
