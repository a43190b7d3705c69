// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"fmt"
	"strings"
)

// prefixed is an error with what it was found in before it.
type prefixed struct {
	prefix, group string
	err           error
}

// within puts before an error what it was found in, which names the group too,
// so that the error need not say it again.
func within(prefix, group string, err error) error { return &prefixed{prefix, group, err} }

func (e *prefixed) Error() string {
	text := strings.TrimPrefix(e.err.Error(), "dist: ")
	return e.prefix + strings.TrimPrefix(text, fmt.Sprintf("group %q: ", e.group))
}

func (e *prefixed) Unwrap() error { return e.err }
