// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"fmt"
	"strings"

	"github.com/cohort-ml/cohort/dist/operation"
)

// RankCall is what one rank called, and where.
type RankCall struct {
	Rank int            // by its number in the error's group
	Call operation.Call // prints as "all_reduce sum of 4 float32"
	Site string         // the line of the call, "path/file.go:88 pkg.Func"; "" if not known
	// Group is the name of the group of the call, if that is another than the
	// error's. Rank is the number in the error's group all the same.
	Group string

	who Member // the rank with its number in the job, if that is another
}

// JobRank returns the rank's number in the job.
func (c RankCall) JobRank() int { return c.member().JobRank() }

func (c RankCall) member() Member {
	if c.who.group == "" {
		return Member{Rank: c.Rank}
	}
	m := c.who
	m.Host, m.PID = "", 0
	return m
}

func (c RankCall) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v %v", c.member(), c.Call)
	if c.Group != "" {
		fmt.Fprintf(&b, " on group %q", c.Group)
	}
	if c.Site != "" {
		fmt.Fprintf(&b, " at %s", c.Site)
	}
	return b.String()
}

// writeWhere writes which operation failed, of which group, and where it was called.
func writeWhere(b *strings.Builder, op string, seq uint64, group, site string) {
	if op == "" || op == "init" { // none, or the making of the group
		fmt.Fprintf(b, "group %q: ", group)
		return
	}
	fmt.Fprintf(b, "%s of group %q", Numbered(op, seq), group)
	if line := siteLine(site); line != "" {
		fmt.Fprintf(b, " (%s)", line)
	}
	b.WriteString(": ")
}

// Numbered returns how errors name a call: by its operation and its number, "recv 3".
// A call that has not had its turn has no number yet: "recv".
func Numbered(op string, seq uint64) string {
	if seq == 0 {
		return op
	}
	return fmt.Sprintf("%s %d", op, seq)
}

// siteLine returns file and line of a site without the file's folder:
// "file.go:88". Folders may contain spaces, and names of functions slashes.
func siteLine(site string) string {
	line := site
	if file, rest, ok := strings.Cut(site, ".go:"); ok {
		number, _, _ := strings.Cut(rest, " ")
		line = file + ".go:" + number
	}
	return line[strings.LastIndexByte(line, '/')+1:]
}
