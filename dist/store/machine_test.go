// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// model is the store as plainly as it can be said: after every change all
// waiting calls are looked at again.
type model struct {
	values  map[string]string
	queues  map[string][]string
	waiting []modelWait
}

type modelWait struct {
	call call
	op   opcode
	keys []string
}

// apply returns the answers as text, sorted.
func (m *model) apply(c call, q request) []string {
	var out []string
	say := func(c call, format string, args ...any) {
		out = append(out, fmt.Sprintf("%d/%d ", c.client, c.id)+fmt.Sprintf(format, args...))
	}
	k := ""
	if len(q.keys) > 0 {
		k = q.keys[0]
	}
	old, exists := m.values[k]
	switch q.op {
	case opSet:
		m.values[k] = string(q.value)
		say(c, "ok")
	case opGet, opWait, opMultiGet, opPop:
		m.waiting = append(m.waiting, modelWait{c, q.op, q.keys})
	case opMultiSet:
		for i, k := range q.keys {
			m.values[k] = string(q.values[i])
		}
		say(c, "ok")
	case opAppend:
		m.values[k] = old + string(q.value)
		say(c, "ok")
	case opPush:
		m.queues[k] = append(m.queues[k], string(q.value))
		say(c, "ok")
	case opQueueLen:
		say(c, "number %d", len(m.queues[k]))
	case opNumKeys:
		n := 0
		for have := range m.values {
			if strings.HasPrefix(have, k) {
				n++
			}
		}
		say(c, "number %d", n)
	case opAdd:
		n, err := strconv.ParseInt(old, 10, 64)
		if exists && err != nil {
			say(c, "not an integer")
			break
		}
		m.values[k] = strconv.FormatInt(n+q.delta, 10)
		say(c, "number %d", n+q.delta)
	case opCAS:
		if exists == (q.expected != nil) && old == string(q.expected) {
			m.values[k] = string(q.value)
			say(c, "value %q", q.value)
		} else if exists {
			say(c, "no, %q", old)
		} else {
			say(c, "no")
		}
	case opDelete:
		delete(m.values, k)
		if exists {
			say(c, "ok")
		} else {
			say(c, "no")
		}
	}
	// Those who came first are first in a queue, so the order counts.
	m.waiting = slices.DeleteFunc(m.waiting, func(w modelWait) bool {
		if w.op == opPop {
			queued := m.queues[w.keys[0]]
			if len(queued) == 0 {
				return false
			}
			say(w.call, "value %q", queued[0])
			m.queues[w.keys[0]] = queued[1:]
			return true
		}
		if len(m.missing(w.keys)) > 0 {
			return false
		}
		switch w.op {
		case opGet:
			say(w.call, "value %q", m.values[w.keys[0]])
		case opMultiGet:
			values := []string{}
			for _, k := range w.keys {
				values = append(values, m.values[k])
			}
			say(w.call, "values %q", values)
		default:
			say(w.call, "ok")
		}
		return true
	})
	slices.Sort(out)
	return out
}

// size is what the keys with a value and all values take.
func (m *model) size() (n int64) {
	for k, v := range m.values {
		n += int64(entrySize + len(k) + len(v))
	}
	for _, queued := range m.queues {
		for _, v := range queued {
			n += int64(entrySize + len(v))
		}
	}
	return n
}

func (m *model) missing(keys []string) (missing []string) {
	for _, k := range keys {
		if _, ok := m.values[k]; !ok {
			missing = append(missing, k)
		}
	}
	return missing
}

func (m *model) cancel(c call) []string {
	for i, w := range m.waiting {
		if w.call == c {
			m.waiting = slices.Delete(m.waiting, i, i+1)
			missing := w.keys
			if w.op != opPop {
				missing = m.missing(w.keys)
			}
			return []string{fmt.Sprintf("%d/%d cancelled %q", c.client, c.id, missing)}
		}
	}
	return nil
}

// describe says the machine's answers as the model does.
func describe(answers []answer) []string {
	var out []string
	for _, a := range answers {
		text := ""
		switch {
		case a.status == statusNotInteger:
			text = "not an integer"
		case a.status == statusCancelled:
			text = fmt.Sprintf("cancelled %q", a.missing)
		case a.status == statusNo && a.value != nil:
			text = fmt.Sprintf("no, %q", a.value)
		case a.status == statusNo:
			text = "no"
		case a.values != nil:
			text = fmt.Sprintf("values %q", a.values)
		case a.value != nil:
			text = fmt.Sprintf("value %q", a.value)
		default:
			text = "ok"
		}
		out = append(out, fmt.Sprintf("%d/%d %s", a.client, a.id, text))
	}
	slices.Sort(out)
	return out
}

// whats are the operations of the property test, the more likely ones several times.
var whats = []opcode{opSet, opSet, opGet, opGet, opAdd, opCAS, opWait, opWait, opWait, opDelete, opCancel, opAppend,
	opMultiGet, opMultiGet, opMultiSet, opPush, opPush, opPop, opPop, opQueueLen, opNumKeys, 0}

// The machine does what the model does, for any sequence of requests of any
// clients, and forgets every call that has ended.
func TestMachineProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		real := newMachine()
		plain := &model{values: map[string]string{}, queues: map[string][]string{}}
		key := rapid.SampledFrom([]string{"a", "ab", "c", "d"})
		value := rapid.SampledFrom([]string{"", "1", "2", "x"})
		var made []call
		counts := rapid.IntRange(0, 80).Draw(t, "counted from step")
		for step := range rapid.IntRange(1, 80).Draw(t, "steps") {
			c := call{client: rapid.Uint64Range(0, 2).Draw(t, "client"), id: uint64(step)}
			var got, want []string
			switch what := rapid.SampledFrom(whats).Draw(t, "what"); what {
			case opCancel:
				if len(made) == 0 {
					continue
				}
				c = rapid.SampledFrom(made).Draw(t, "call to cancel")
				want = plain.cancel(c)
				got = describe(real.cancel(c, nil))
			case 0: // a client goes
				if rapid.IntRange(0, 3).Draw(t, "really") != 0 {
					continue
				}
				real.drop(c.client)
				plain.waiting = slices.DeleteFunc(plain.waiting, func(w modelWait) bool { return w.call.client == c.client })
			default:
				q := request{op: what}
				switch {
				case q.op.isMulti():
					q.keys = rapid.SliceOfN(key, 0, 4).Draw(t, "keys")
				case q.op == opNumKeys:
					q.keys = []string{rapid.SampledFrom([]string{"", "a", "ab", "z"}).Draw(t, "prefix")}
				default:
					q.keys = []string{key.Draw(t, "key")}
				}
				if q.op == opMultiSet {
					for range q.keys {
						q.values = append(q.values, []byte(value.Draw(t, "values")))
					}
				}
				q.value = []byte(value.Draw(t, "value"))
				if rapid.Bool().Draw(t, "expects a value") {
					q.expected = []byte(value.Draw(t, "expected"))
				}
				q.delta = rapid.Int64Range(-2, 2).Draw(t, "delta")
				want = plain.apply(c, q)
				if ready := real.ready(&q); ready != (len(want) > 0 && slices.ContainsFunc(want, func(s string) bool {
					return strings.HasPrefix(s, fmt.Sprintf("%d/%d ", c.client, c.id))
				})) {
					t.Fatalf("step %d: ready says %v of %v, the model answers %q", step, ready, q, want)
				}
				answers := real.apply(c, q, nil)
				got = describe(answers)
				for i := range answers {
					if a := answers[i]; (q.op == opAdd || q.op == opQueueLen || q.op == opNumKeys) && a.call == c && a.status == statusOK {
						got = describe(slices.Delete(answers, i, i+1))
						got = append(got, fmt.Sprintf("%d/%d number %d", c.client, c.id, a.number))
						break
					}
				}
				made = append(made, c)
			}
			slices.Sort(want)
			slices.Sort(got)
			if !slices.Equal(got, want) {
				t.Fatalf("step %d: machine answered %q, model %q", step, got, want)
			}
			audit(t, real, plain)
			if want := plain.size(); step >= counts && real.count() != want {
				t.Fatalf("step %d: machine counts %d bytes, want %d", step, real.count(), want)
			}
		}
	})
}

// audit compares the states.
func audit(t *rapid.T, real *machine, plain *model) {
	if len(real.values) != len(plain.values) {
		t.Fatalf("machine has %d keys, model %d", len(real.values), len(plain.values))
	}
	for k, v := range plain.values {
		if got, ok := real.values[k]; !ok || string(got) != v {
			t.Fatalf("key %q: machine %q, model %q", k, got, v)
		}
	}
	for k, l := range real.queues {
		if l.len() == 0 && l.pops.Len() == 0 || l.len() > 0 && l.pops.Len() > 0 {
			t.Fatalf("queue %q has %d values and %d pops", k, l.len(), l.pops.Len())
		}
		if l.head > len(l.values)/2 {
			t.Fatalf("queue %q: %d of %d places are of values that have gone", k, l.head, len(l.values))
		}
	}
	for k, values := range plain.queues {
		n := 0
		if l := real.queues[k]; l != nil {
			n = l.len()
		}
		if n != len(values) {
			t.Fatalf("queue %q: machine %d values, model %d", k, n, len(values))
		}
	}
	calls, listed := 0, 0
	for _, l := range real.queues {
		listed += l.pops.Len()
	}
	for _, mine := range real.calls {
		if len(mine) == 0 {
			t.Fatal("a client without calls is kept")
		}
		calls += len(mine)
	}
	for k, l := range real.waiting {
		if len(l) == 0 {
			t.Fatal("a key without waiters is kept")
		}
		if _, ok := real.values[k]; ok {
			t.Fatalf("calls wait for %q, which exists", k)
		}
		listed += len(l)
	}
	if calls != len(plain.waiting) || listed != calls {
		t.Fatalf("%d calls wait, %d are listed, %d in the model", calls, listed, len(plain.waiting))
	}
}
