// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// model is the store as plainly as it can be said: after every change all
// waiting calls are looked at again.
type model struct {
	values  map[string]string
	waiting []modelWait
}

type modelWait struct {
	call call
	keys []string
	get  bool
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
	case opGet, opWait:
		m.waiting = append(m.waiting, modelWait{c, q.keys, q.op == opGet})
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
	m.waiting = slices.DeleteFunc(m.waiting, func(w modelWait) bool {
		if len(m.missing(w.keys)) > 0 {
			return false
		}
		if w.get {
			say(w.call, "value %q", m.values[w.keys[0]])
		} else {
			say(w.call, "ok")
		}
		return true
	})
	slices.Sort(out)
	return out
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
			return []string{fmt.Sprintf("%d/%d cancelled %q", c.client, c.id, m.missing(w.keys))}
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

// The machine does what the model does, for any sequence of requests of any
// clients, and forgets every call that has ended.
func TestMachineProperty(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		real := newMachine()
		plain := &model{values: map[string]string{}}
		key := rapid.SampledFrom([]string{"a", "b", "c", "d"})
		value := rapid.SampledFrom([]string{"", "1", "2", "x"})
		var made []call
		for step := range rapid.IntRange(1, 80).Draw(t, "steps") {
			c := call{client: rapid.Uint64Range(0, 2).Draw(t, "client"), id: uint64(step)}
			var got, want []string
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); what {
			case 8:
				if len(made) == 0 {
					continue
				}
				c = rapid.SampledFrom(made).Draw(t, "call to cancel")
				want = plain.cancel(c)
				got = describe(real.cancel(c, nil))
			case 9:
				if rapid.IntRange(0, 3).Draw(t, "really") != 0 {
					continue
				}
				real.drop(c.client)
				plain.waiting = slices.DeleteFunc(plain.waiting, func(w modelWait) bool { return w.call.client == c.client })
			default:
				q := request{op: opcode(min(what, 5) + 1)}
				switch q.op {
				case opWait:
					q.keys = rapid.SliceOfN(key, 0, 4).Draw(t, "keys")
				default:
					q.keys = []string{key.Draw(t, "key")}
				}
				q.value = []byte(value.Draw(t, "value"))
				if rapid.Bool().Draw(t, "expects a value") {
					q.expected = []byte(value.Draw(t, "expected"))
				}
				q.delta = rapid.Int64Range(-2, 2).Draw(t, "delta")
				want = plain.apply(c, q)
				answers := real.apply(c, q, nil)
				got = describe(answers)
				for i := range answers {
					if a := answers[i]; q.op == opAdd && a.call == c && a.status == statusOK {
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
	calls, listed := 0, 0
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
