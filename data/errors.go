// SPDX-License-Identifier: Apache-2.0

package data

import "fmt"

// Problem is what is wrong with a source of data.
type Problem int

const (
	Missing    Problem = iota + 1 // nothing is there
	Empty                         // a directory or file without usable text
	Unreadable                    // the system refuses to read it
	TooSmall                      // not enough text to train and validate on
	NotText                       // not UTF-8 text
	Changed                       // another size than when it was opened
	Records                       // records, such as conversations, which are not trained on as text
)

func (p Problem) String() string {
	switch p {
	case Missing:
		return "missing"
	case Empty:
		return "empty"
	case Unreadable:
		return "unreadable"
	case TooSmall:
		return "too small"
	case NotText:
		return "not text"
	case Changed:
		return "changed"
	case Records:
		return "a file of records"
	}
	return fmt.Sprintf("Problem(%d)", int(p))
}

// SourceError says what is wrong with a file or directory of data and what to
// do about it.
type SourceError struct {
	Path    string
	Problem Problem
	Detail  string // figures or coordinates, may be empty
	Advice  string
	Err     error // of the system, may be nil
}

func (e *SourceError) Error() string {
	s := fmt.Sprintf("data: %s is %s", e.Path, e.Problem)
	if e.Problem == Changed {
		s = fmt.Sprintf("data: %s has changed", e.Path)
	}
	if e.Detail != "" {
		s += " (" + e.Detail + ")"
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Advice != "" {
		s += "; " + e.Advice
	}
	return s
}

func (e *SourceError) Unwrap() error { return e.Err }
