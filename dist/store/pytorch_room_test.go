// SPDX-License-Identifier: Apache-2.0

package store

import (
	"encoding/binary"
	"strings"
	"testing"
)

// Keys take room too, whatever is stored under them; what frees some does not ask for any.
func TestPyTorchKeysTakeRoom(t *testing.T) {
	s, refused := pyTorchHost(t)
	c := rawPyTorch(t, s.Addr())
	const one, none = "\x01\x00\x00\x00\x00\x00\x00\x00", "\x00\x00\x00\x00\x00\x00\x00\x00"
	key := func(name string) string {
		name = "/" + name + strings.Repeat("x", 10<<10)
		return string(binary.LittleEndian.AppendUint64(nil, uint64(len(name)))) + name
	}
	talk(t, c, hello2+"\x04"+key("old")+one, one)
	before := s.mem.grow(0)
	rest := maxServed + maxServedKeys - before - 4<<10
	s.mem.grow(rest) // as if others had set that
	for what, request := range map[string]string{
		"set": "\x01" + key("new") + none, "compare_set": "\x02" + key("new") + none + none, "add": "\x04" + key("new") + one,
		"append": "\x09" + key("new") + none, "multi_set": "\x0b" + one + key("new") + none, "push": "\x0e" + key("new") + none,
	} {
		over := rawPyTorch(t, s.Addr())
		talk(t, over, hello2+request, "")
		if r := <-refused; !strings.Contains(r.Error(), "a key for which there is no room") {
			t.Errorf("%s: %v, want that there is no room", what, r)
		}
	}
	if have := s.mem.grow(0); have != before+rest {
		t.Errorf("%d bytes are counted, want %d", have, before+rest)
	}
	talk(t, c, "\x08"+key("old"), one)
	if have := s.mem.grow(0); have > rest+1<<10 {
		t.Errorf("%d bytes are counted when the key is deleted, want %d and a little", have, rest)
	}
}
