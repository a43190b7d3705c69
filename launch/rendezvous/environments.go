// SPDX-License-Identifier: Apache-2.0

package rendezvous

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/cohort-ml/cohort/dist/store"
	"github.com/cohort-ml/cohort/internal/fingerprint"
	"github.com/cohort-ml/cohort/launch"
)

// Before the ranks of a round start, the nodes compare their environments. Node 0 asks, each
// node answers with its fingerprint and the time of its clock, and node 0 writes what it has
// found. The others wait for that. The keys are below keyEnvironments, the round and "/".
const (
	keyEnvironments = "environments/"
	keyAsk          = "ask"
	keyAnswer       = "answer/" // and the ID of the node
	keyVerdict      = "verdict"
)

const (
	// answerPatience is how long node 0 waits for the answers of all nodes.
	answerPatience = 20 * time.Second
	// verdictPatience is how long the others wait for what node 0 has found. It is longer, so
	// that node 0 can say who has not answered.
	verdictPatience = answerPatience + 20*time.Second
	// maxAnswer bounds the compressed answer of a node, maxVerdict what node 0 writes.
	maxAnswer  = 1 << 20
	maxVerdict = 4 << 20
	// maxFindings is how many findings node 0 passes on.
	maxFindings = 400
	// shownFindings is how many a node prints.
	shownFindings = 30
	// answerChunk is how many answers are read in one call.
	answerChunk = 32
)

// answer is what a node says of its environment.
type answer struct {
	Check launch.EnvironmentCheck  `json:"check"`
	Time  int64                    `json:"time"` // of its clock, in nanoseconds
	Print *fingerprint.Fingerprint `json:"print"`
}

// verdict is what node 0 has found.
type verdict struct {
	Findings []fingerprint.Finding `json:"findings"`
	More     int                   `json:"more,omitempty"` // findings that are left out
	Stop     bool                  `json:"stop,omitempty"`
	Summary  string                `json:"summary,omitempty"`
}

// comparison is a comparison of environments before a round.
type comparison struct {
	store  *storeClient
	prefix string
	nodes  []Node // in the order of their ranks
	mine   int
	check  launch.EnvironmentCheck
	print  func() *fingerprint.Fingerprint
	out    io.Writer
}

// compare compares the environments of the nodes of a round. Its error stops the job.
func (c *comparison) compare(ctx context.Context) error {
	if len(c.nodes) < 2 {
		return nil
	}
	print := c.print() // before anything is timed
	var v *verdict
	var err error
	if c.mine == 0 {
		v, err = c.judge(ctx, print)
	} else {
		v, err = c.wait(ctx, print)
	}
	switch {
	case ctx.Err() != nil:
		return context.Cause(ctx)
	case err != nil && c.check != launch.CheckStop:
		fmt.Fprintf(c.out, "cohort: the environments of the nodes are not compared: %s\n", plain(err.Error()))
		return nil
	case err != nil:
		return fmt.Errorf("the environments of the nodes cannot be compared: %w (--env-check off goes without)", err)
	}
	c.tell(v)
	if v.Stop {
		return fmt.Errorf("the environments of the nodes differ: %s: mend what the table says, or give --env-check warn", v.Summary)
	}
	return nil
}

// judge is compare on node 0.
func (c *comparison) judge(ctx context.Context, print *fingerprint.Fingerprint) (*verdict, error) {
	v, err := c.ask(ctx, print)
	if err != nil {
		// The others must not wait for nothing.
		v = &verdict{Stop: c.check == launch.CheckStop, Summary: clip(err.Error())}
	}
	bad := c.store.call(ctx, c.store.timeout, func(ctx context.Context, s store.Store) error {
		return s.Set(ctx, c.prefix+keyVerdict, encode(v))
	})
	return v, cmp.Or(err, bad)
}

func (c *comparison) ask(ctx context.Context, print *fingerprint.Fingerprint) (*verdict, error) {
	if c.check == launch.CheckOff {
		return &verdict{}, c.store.call(ctx, c.store.timeout, func(ctx context.Context, s store.Store) error {
			return s.Set(ctx, c.prefix+keyAsk, []byte("off"))
		})
	}
	asked := fingerprint.Now()
	err := c.store.call(ctx, c.store.timeout, func(ctx context.Context, s store.Store) error {
		return s.Set(ctx, c.prefix+keyAsk, []byte("compare"))
	})
	if err != nil {
		return nil, err
	}
	nodes := []fingerprint.Node{{Name: c.nodes[0].Name(), Print: print}}
	times := []time.Time{asked}
	late, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	for chunk := range slices.Chunk(c.nodes[1:], answerChunk) {
		keys := make([]string, len(chunk))
		for i := range chunk {
			keys[i] = c.prefix + keyAnswer + chunk[i].ID
		}
		var values [][]byte
		err := c.store.call(late, answerPatience, func(ctx context.Context, s store.Store) (err error) {
			values, err = s.MultiGet(ctx, keys...)
			return err
		})
		if err != nil {
			return nil, c.missing(ctx, err)
		}
		for i, b := range values {
			a, err := readAnswer(b)
			if err != nil {
				return nil, fmt.Errorf("%s has answered with what is no environment: %w", chunk[i].Name(), err)
			}
			if a.Check == launch.CheckOff {
				continue
			}
			nodes = append(nodes, fingerprint.Node{Name: chunk[i].Name(), Print: a.Print})
			times = append(times, time.Unix(0, a.Time))
		}
	}
	got := fingerprint.Now()
	times[0] = asked.Add(got.Sub(asked) / 2) // node 0's own clock is right for itself
	all := fingerprint.Compare(nodes)
	all = append(all, fingerprint.CompareClocks(nodes, times, asked, got)...)
	v := &verdict{Findings: all}
	if len(all) == 0 {
		return v, nil
	}
	v.Summary = fingerprint.Summary(all)
	v.Stop = fingerprint.Stops(all) && c.check == launch.CheckStop
	slices.SortStableFunc(v.Findings, func(a, b fingerprint.Finding) int {
		return strings.Compare(string(a.Kind), string(b.Kind)) // must before warn
	})
	if n := len(all); n > maxFindings {
		v.Findings, v.More = all[:maxFindings], n-maxFindings
	}
	return v, nil
}

// missing says which nodes have not answered.
func (c *comparison) missing(ctx context.Context, cause error) error {
	var silent []Node
	for i := range c.nodes[1:] {
		n := c.nodes[1+i]
		var there []byte
		err := c.store.call(ctx, c.store.timeout, func(ctx context.Context, s store.Store) (err error) {
			there, _, err = s.CompareAndSet(ctx, c.prefix+keyAnswer+n.ID, absent, absent)
			return err
		})
		if err != nil {
			return err
		}
		if there == nil {
			silent = append(silent, n)
		}
	}
	if len(silent) == 0 {
		return cause
	}
	return fmt.Errorf("no answer for %v from %s: is another version of Cohort installed there?", answerPatience, names(silent))
}

// wait is compare on the other nodes.
func (c *comparison) wait(ctx context.Context, print *fingerprint.Fingerprint) (*verdict, error) {
	call := func(key string, patience time.Duration) (b []byte, err error) {
		err = c.store.call(ctx, patience, func(ctx context.Context, s store.Store) error {
			b, err = s.Get(ctx, c.prefix+key)
			return err
		})
		if errors.Is(err, context.DeadlineExceeded) {
			err = fmt.Errorf("%s has said nothing of environments for %v: is another version of Cohort installed there?", c.nodes[0].Name(), patience)
		}
		return b, err
	}
	b, err := call(keyAsk, verdictPatience)
	if err != nil || string(b) == "off" {
		return &verdict{}, err
	}
	mine, err := writeAnswer(&answer{Check: c.check, Time: fingerprint.Now().UnixNano(), Print: print})
	if err != nil {
		return nil, err
	}
	err = c.store.call(ctx, c.store.timeout, func(ctx context.Context, s store.Store) error {
		return s.Set(ctx, c.prefix+keyAnswer+c.nodes[c.mine].ID, mine)
	})
	if err != nil {
		return nil, err
	}
	if b, err = call(keyVerdict, verdictPatience); err != nil {
		return nil, err
	}
	v := &verdict{}
	if err := decode(b, maxVerdict, v); err != nil {
		return nil, err
	}
	return v, nil
}

// writeAnswer compresses an answer: the fingerprint of a large Python environment has some
// 20 kB.
func writeAnswer(a *answer) ([]byte, error) {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	if err := json.NewEncoder(z).Encode(a); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	if b.Len() > maxAnswer {
		return nil, fmt.Errorf("the environment of this node has %d bytes, at most %d", b.Len(), maxAnswer)
	}
	return b.Bytes(), nil
}

func readAnswer(b []byte) (*answer, error) {
	if len(b) > maxAnswer {
		return nil, fmt.Errorf("%d bytes, at most %d", len(b), maxAnswer)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	const most = 4 * fingerprint.MaxBytes
	text, err := io.ReadAll(io.LimitReader(z, most+1))
	if err != nil {
		return nil, err
	}
	a := &answer{}
	if err := decode(text, most, a); err != nil {
		return nil, err
	}
	if a.Print == nil {
		return nil, errors.New("it has no fingerprint")
	}
	return a, nil
}

// tell prints what concerns this node; node 0 prints everything, and so do all nodes if the
// job stops.
func (c *comparison) tell(v *verdict) {
	all := v.Findings
	if c.mine != 0 && !v.Stop {
		name := c.nodes[c.mine].Name()
		all = slices.DeleteFunc(slices.Clone(all), func(f fingerprint.Finding) bool { return f.Node != name })
	}
	if len(all) == 0 {
		return
	}
	more := v.More
	if n := len(all); n > shownFindings {
		all, more = all[:shownFindings], more+n-shownFindings
	}
	var b strings.Builder
	fmt.Fprintf(&b, "cohort: the environments of the nodes differ:\n")
	for line := range strings.Lines(fingerprint.Table(all)) {
		b.WriteString("  " + line)
	}
	if more > 0 {
		b.WriteString("  and " + strconv.Itoa(more) + " more; cohort env export and cohort env diff show all\n")
	}
	_, _ = io.WriteString(c.out, b.String())
}
