// SPDX-License-Identifier: Apache-2.0

package flightlog

import (
	"fmt"
	"strings"
	"time"
)

// Version is that of the dumps and reports that this package knows.
const Version = 1

// Dump is what one rank's recorder holds; the package's documentation has its
// JSON.
type Dump struct {
	Version   int    `json:"version"`
	Rank      int    `json:"rank"`
	WorldSize int    `json:"world_size"`
	Host      string `json:"host,omitempty"`
	PID       int    `json:"pid,omitempty"`
	Reason    string `json:"reason"`
	Asked     uint64 `json:"asked,omitempty"`
	// At is the line at which the program was, Stack that of the goroutine that makes the
	// calls, where the dump was asked for.
	At      string    `json:"at,omitempty"`
	Stack   string    `json:"stack,omitempty"`
	Start   time.Time `json:"start"`
	TimeNS  int64     `json:"time_ns"`
	Sites   []string  `json:"sites"`
	Groups  []Group   `json:"groups"`
	Entries []Entry   `json:"entries"`
}

// Group is a group as one of its members sees it.
type Group struct {
	Name      string   `json:"name"`
	Key       string   `json:"key"`
	Rank      int      `json:"rank"`
	Size      int      `json:"size"`
	Ranks     []int    `json:"ranks,omitempty"`
	Members   []Member `json:"members,omitempty"`
	Transport string   `json:"transport,omitempty"`
	Called    uint64   `json:"called"`
	Begun     uint64   `json:"begun"`
	Ended     uint64   `json:"ended"`
	Calls     uint64   `json:"calls"`
	WaitedNS  int64    `json:"waited_ns"`
	Error     string   `json:"error,omitempty"`
	ErrorNS   int64    `json:"error_ns,omitempty"`
	Culprits  []int    `json:"culprits,omitempty"`
	Closed    bool     `json:"closed,omitempty"`
	Skew      []Skew   `json:"skew,omitempty"`
}

// Skew is how late a rank of the job comes to the collectives of a group.
type Skew struct {
	Rank   int     `json:"rank"`
	LateNS int64   `json:"late_ns"`
	Share  float64 `json:"share"`
	StepNS int64   `json:"step_ns"`
}

// Member is a rank of the job and where it runs.
type Member struct {
	Rank int    `json:"rank"`
	Host string `json:"host,omitempty"`
	PID  int    `json:"pid,omitempty"`
}

func (m Member) String() string {
	switch {
	case m.Host != "" && m.PID != 0:
		return fmt.Sprintf("rank %d (host %s, pid %d)", m.Rank, m.Host, m.PID)
	case m.PID != 0:
		return fmt.Sprintf("rank %d (pid %d)", m.Rank, m.PID)
	}
	return fmt.Sprintf("rank %d", m.Rank)
}

// State is how far a call has come.
type State string

// The states of a call.
const (
	Called State = "called" // it waits for calls that were made before it
	Begun  State = "begun"  // it runs, or waits for other ranks
	Ended  State = "ended"
	Failed State = "failed"
)

// Entry is one call.
type Entry struct {
	Group    int    `json:"group"`
	Op       string `json:"op"`
	Seq      uint64 `json:"seq"`
	DType    string `json:"dtype,omitempty"`
	Count    int    `json:"count"`
	Reduce   string `json:"reduce,omitempty"`
	Root     *int   `json:"root,omitempty"`
	Layout   string `json:"layout,omitempty"`
	Peer     *int   `json:"peer,omitempty"`
	CalledNS int64  `json:"called_ns"`
	BegunNS  int64  `json:"begun_ns,omitempty"`
	EndedNS  int64  `json:"ended_ns,omitempty"`
	State    State  `json:"state"`
	Error    string `json:"error,omitempty"`
	Site     int    `json:"site,omitempty"`
	// Background says that the caller went on while it ran.
	Background bool `json:"background,omitempty"`
}

// message reports whether the call is a send or a receive.
func (e *Entry) message() bool { return e.Peer != nil }

// String is the call without its number, as errors have it: "all_reduce sum of
// 4 float32".
func (e *Entry) String() string {
	var b strings.Builder
	b.WriteString(e.Op)
	if e.Reduce != "" {
		b.WriteString(" " + e.Reduce)
	}
	if e.Root != nil {
		way := "to"
		if e.Op == "broadcast" || e.Op == "scatter" {
			way = "from"
		}
		fmt.Fprintf(&b, " %s rank %d", way, *e.Root)
	}
	if e.DType != "" {
		fmt.Fprintf(&b, " of %d %s", e.Count, e.DType)
	}
	if e.Layout != "" {
		b.WriteString(" (uneven)")
	}
	if e.Peer != nil {
		way := "to"
		if e.Op == "recv" {
			way = "from"
		}
		if *e.Peer < 0 {
			fmt.Fprintf(&b, " %s any rank", way)
		} else {
			fmt.Fprintf(&b, " %s rank %d", way, *e.Peer)
		}
	}
	return b.String()
}

// fits reports whether two ranks' calls of one number are the same call.
func (e *Entry) fits(o *Entry) bool {
	if e.Op != o.Op || e.Reduce != o.Reduce || e.DType != o.DType || e.Layout != o.Layout || (e.Root == nil) != (o.Root == nil) {
		return false
	}
	if e.Root != nil && *e.Root != *o.Root {
		return false
	}
	// A gather's parts, and uneven ones, are each rank's own affair.
	return e.Count == o.Count || e.Layout != "" || e.Op == "gather" || e.Op == "scatter"
}

// Time is when the dump was made, by the clock of its host.
func (d *Dump) Time() time.Time { return d.at(d.TimeNS) }

// at is a time of a dump on its host's clock.
func (d *Dump) at(ns int64) time.Time { return d.Start.Add(time.Duration(ns)) }

// site returns the text of an entry's call site, "" if it is not known.
func (d *Dump) site(e *Entry) string {
	if e.Site > 0 && e.Site < len(d.Sites) {
		return d.Sites[e.Site]
	}
	return ""
}

// world returns the number in the job of a rank of a group.
func (g *Group) world(rank int) int {
	if g.Ranks != nil && rank >= 0 && rank < len(g.Ranks) {
		return g.Ranks[rank]
	}
	return rank
}
