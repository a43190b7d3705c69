// SPDX-License-Identifier: Apache-2.0

package pickle

// identity tells containers apart: two values with one identity are the same container. It
// is nil for plain values and for empty tuples.
func identity(v any) any {
	switch v := v.(type) {
	case *List, *Dict, *Set, *Object, *Persistent:
		return v
	case Tuple:
		if len(v) > 0 {
			return &v[0]
		}
	}
	return nil
}

// extent is the size of a value.
type extent struct {
	depth int
	size  int // number of values, a shared one at each of its places
}

// measurer finds out how large the tree of a value is.
type measurer struct {
	d    *decoder
	done map[any]extent // of shared containers
	open map[any]bool   // shared containers that are being measured
}

// checkTree refuses a value that contains itself, that is too deep, or that is too large when
// everything in it is looked at in turn. It also leaves one entry of a key of a dict.
func (d *decoder) checkTree(v any) {
	m := &measurer{d: d, done: map[any]extent{}, open: map[any]bool{}}
	m.measure(v, 0)
}

func (m *measurer) measure(v any, depth int) extent {
	if depth > m.d.o.Depth {
		m.d.fail("has values in values deeper than the %d allowed", m.d.o.Depth)
	}
	id := identity(v)
	isShared := id != nil && m.d.shared[id]
	if isShared {
		if e, ok := m.done[id]; ok {
			if depth+e.depth > m.d.o.Depth {
				m.d.fail("has values in values deeper than the %d allowed", m.d.o.Depth)
			}
			return e
		}
		if m.open[id] {
			m.d.fail("has a value that contains itself")
		}
		m.open[id] = true
	}
	e := extent{size: 1}
	add := func(values ...any) {
		for _, v := range values {
			inner := m.measure(v, depth+1)
			e.depth = max(e.depth, inner.depth+1)
			if e.size += inner.size; e.size > m.d.o.Values {
				m.d.fail("has more than the %d values allowed, if a shared value counts at each of its places", m.d.o.Values)
			}
		}
	}
	entries := func(list []Entry) {
		for _, entry := range list {
			add(entry.Key, entry.Value)
		}
	}
	switch v := v.(type) {
	case Tuple:
		add(v...)
	case *List:
		add(v.Items...)
	case *Set:
		add(v.Items...)
	case *Dict:
		entries(v.Entries)
		v.Entries = unique(v.Entries)
	case *Object:
		add(v.Args...)
		add(v.State)
		add(v.Items...)
		entries(v.Entries)
		v.Entries = unique(v.Entries)
	case *Persistent:
		add(v.ID)
	}
	if isShared {
		m.done[id] = e
		delete(m.open, id)
	}
	return e
}

// unique leaves one entry of each string key, as Python does: at the place of the first one,
// with the value of the last one.
func unique(entries []Entry) []Entry {
	if len(entries) < 2 {
		return entries
	}
	at := make(map[string]int, len(entries))
	kept := entries[:0]
	for _, e := range entries {
		key, ok := e.Key.(string)
		if !ok {
			kept = append(kept, e)
			continue
		}
		if i, found := at[key]; found {
			kept[i].Value = e.Value
			continue
		}
		at[key] = len(kept)
		kept = append(kept, e)
	}
	return kept
}
