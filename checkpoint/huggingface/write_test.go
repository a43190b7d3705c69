// SPDX-License-Identifier: Apache-2.0

package huggingface

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// TestWrite: what is written from pieces is read again, in any number of files.
func TestWrite(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	var infos []safetensors.Info
	data := map[string][]byte{}
	for i := range 7 {
		info := safetensors.Info{Name: fmt.Sprint("t", i), DType: safetensors.I16, Shape: []int{rng.IntN(40), 3}}
		b := make([]byte, info.NumBytes())
		for j := range b {
			b[j] = byte(rng.Uint32())
		}
		infos, data[info.Name] = append(infos, info), b
	}
	write := func(w io.Writer, info safetensors.Info) error {
		for b := data[info.Name]; len(b) > 0; {
			n := min(1+rng.IntN(50), len(b))
			if _, err := w.Write(b[:n]); err != nil {
				return err
			}
			b = b[n:]
		}
		return nil
	}
	for n := 1; n <= len(infos); n++ {
		dir := t.TempDir()
		o := WriteOptions{NumShards: n, Files: map[string][]byte{"config.json": []byte("{}")}}
		if err := Write(context.Background(), storage.Dir(dir), infos, o, write); err != nil {
			t.Fatal(err)
		}
		f, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		if len(f.Files()) != n || len(f.Infos()) != len(infos) {
			t.Errorf("%d files of %d tensors, want %d of %d", len(f.Files()), len(f.Infos()), n, len(infos))
		}
		for _, info := range infos {
			got := make([]byte, info.NumBytes())
			if err := f.ReadTensor(info.Name, got); err != nil || !bytes.Equal(got, data[info.Name]) {
				t.Errorf("%d files: %s: %v", n, info.Name, err)
			}
		}
		if config, err := f.Config(); err != nil || string(config) != "{}" {
			t.Errorf("config.json: %q, %v", config, err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, n := range []int{-1, 8} {
		err := Write(context.Background(), storage.Dir(t.TempDir()), infos, WriteOptions{NumShards: n}, write)
		if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("%d files for 7 tensors: want 1 to 7", n)) {
			t.Errorf("%d files: %v", n, err)
		}
	}
	short := func(w io.Writer, info safetensors.Info) error {
		_, err := w.Write(data[info.Name][:max(len(data[info.Name])-1, 0)])
		return err
	}
	dir := t.TempDir()
	err := Write(context.Background(), storage.Dir(dir), infos, WriteOptions{}, short)
	if err == nil || !strings.Contains(err.Error(), "is given with") {
		t.Errorf("a tensor that lacks a byte: %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) > 0 {
		t.Errorf("a failure leaves %q", left)
	}
}

func TestSplitEvenly(t *testing.T) {
	rng := rand.New(rand.NewPCG(seeded.Of(t), 0))
	for range 200 {
		var infos []safetensors.Info
		var total, largest int64
		for range 1 + rng.IntN(30) {
			n := rng.IntN(100)
			infos = append(infos, safetensors.Info{DType: safetensors.U8, Shape: []int{n}})
			total, largest = total+int64(n), max(largest, int64(n))
		}
		n := 1 + rng.IntN(len(infos))
		shards := splitEvenly(infos, n)
		count := 0
		for _, s := range shards {
			var size int64
			for _, info := range s {
				size += info.NumBytes()
			}
			if len(s) == 0 || size > total/int64(n)+largest+int64(n) {
				t.Errorf("%d tensors of %d bytes in %d shards: one has %d of %d bytes", len(infos), total, n, len(s), size)
			}
			count += len(s)
		}
		if len(shards) != n || count != len(infos) {
			t.Errorf("%d shards with %d tensors, want %d with %d", len(shards), count, n, len(infos))
		}
	}
}

// TestMissingShard: without an index the names of the shards say how many there are.
func TestMissingShard(t *testing.T) {
	infos := []safetensors.Info{{Name: "a", DType: safetensors.U8, Shape: []int{1}}, {Name: "b", DType: safetensors.U8, Shape: []int{1}}}
	dir := t.TempDir()
	one := func(w io.Writer, _ safetensors.Info) error { _, err := w.Write([]byte{1}); return err }
	if err := Write(context.Background(), storage.Dir(dir), infos, WriteOptions{NumShards: 2}, one); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, indexFile)); err != nil {
		t.Fatal(err)
	}
	f, err := Open(dir)
	if err != nil || len(f.Infos()) != 2 {
		t.Fatalf("without an index: %v", err)
	}
	f.Close()
	if err := os.Remove(filepath.Join(dir, "model-00002-of-00002.safetensors")); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(dir); err == nil || !strings.Contains(err.Error(), "lacks the shard model-00002-of-00002.safetensors") {
		t.Errorf("a shard is missing: %v", err)
	}
}
