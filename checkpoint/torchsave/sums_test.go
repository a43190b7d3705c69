// SPDX-License-Identifier: Apache-2.0

package torchsave

import (
	"bytes"
	"encoding/binary"
	"os"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// TestCheckSums: a changed byte of a tensor is found by the checksum of its member, in files of
// PyTorch and of Cohort. A file without checksums says so.
func TestCheckSums(t *testing.T) {
	var ours bytes.Buffer
	v := NewTensor(safetensors.Info{DType: safetensors.F32, Shape: []int{4}}, func(b []byte, at int64) error {
		for i := range b {
			b[i] = byte(int(at) + i)
		}
		return nil
	})
	if err := Write(&ours, map[string]any{"w": v}); err != nil {
		t.Fatal(err)
	}
	theirs, err := os.ReadFile("testdata/odd-2.15.pt")
	if err != nil {
		t.Fatal(err)
	}
	check := func(text []byte) (has bool, differ []string) {
		t.Helper()
		f, err := NewFile(bytes.NewReader(text), int64(len(text)), "x.pt", Limits{})
		if err != nil {
			t.Fatal(err)
		}
		has, err = f.CheckSums(t.Context(), func(member string, err error) {
			if !strings.Contains(err.Error(), "CRC-32") || !strings.Contains(err.Error(), "x.pt") {
				t.Error(err)
			}
			differ = append(differ, member)
		})
		if err != nil {
			t.Fatal(err)
		}
		return has, differ
	}
	for name, text := range map[string][]byte{"Cohort's": ours.Bytes(), "PyTorch's": theirs} {
		if has, differ := check(text); !has || len(differ) > 0 {
			t.Errorf("%s: checksums %v, different %q", name, has, differ)
		}
		a, err := openArchive(bytes.NewReader(text), int64(len(text)), name)
		if err != nil {
			t.Fatal(err)
		}
		for path, m := range a.members {
			if !strings.Contains(path, "/data/") || m.size == 0 {
				continue
			}
			r, err := a.data(m)
			if err != nil {
				t.Fatal(err)
			}
			_, at, _ := r.Outer()
			changed := bytes.Clone(text)
			changed[at+m.size/2] ^= 1
			if _, differ := check(changed); len(differ) != 1 || differ[0] != path {
				t.Errorf("%s: of a changed byte of %s: %q", name, path, differ)
			}
		}
		without := bytes.Clone(text)
		for at := 0; ; {
			i := bytes.Index(without[at:], []byte("PK\x01\x02"))
			if i < 0 {
				break
			}
			binary.LittleEndian.PutUint32(without[at+i+16:], 0)
			at += i + 4
		}
		if has, differ := check(without); has || len(differ) > 0 {
			t.Errorf("%s without checksums: %v, %q", name, has, differ)
		}
	}
}
