// SPDX-License-Identifier: Apache-2.0

package trials

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
	"github.com/cohort-ml/cohort/dist"
	"github.com/cohort-ml/cohort/dist/mesh"
	"github.com/cohort-ml/cohort/internal/seeded"
)

// pair is two checkpoints, of steps 1 and 2. Tests damage the second one.
type pair struct {
	path   string
	draws  [2][]tensorDraw
	axes   []mesh.Axis
	lies   []lie
	second string            // its path
	files  map[string][]byte // of the second one
}

func newPair(t *testing.T) *pair {
	t.Helper()
	p := &pair{path: t.TempDir(), axes: axesOf("fsdp2")}
	dir := storage.Dir(p.path, storage.WithoutSync())
	for i := range p.draws {
		p.draws[i] = optimizerOf(uint64(i+1), []int{33, 5}, []int{64}, []int{2, 3, 4})
		p.lies = liesAs(p.draws[i], mesh.Shard(0))
		err := onMesh(t, p.axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
			h, err := hold(p.draws[i], p.lies, m, true)
			if err != nil {
				return err
			}
			return checkpoint.Save(ctx, g, dir, i+1, checkpoint.State{
				Sections: h.sections(), Values: map[string]any{"lr": 0.125, "step": i + 1}, RankValues: map[string]any{"rank": rank},
				Files: func(w *checkpoint.Writer) error { return w.WriteFile("config.json", []byte(`{"layers": 2}`)) },
			})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	p.second = filepath.Join(p.path, checkpoint.StepName(2))
	p.files = make(map[string][]byte)
	entries, err := os.ReadDir(p.second)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if p.files[e.Name()], err = os.ReadFile(filepath.Join(p.second, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// restore puts the second checkpoint back.
func (p *pair) restore() error {
	entries, err := os.ReadDir(p.path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.Name() != checkpoint.StepName(1) {
			if err := os.RemoveAll(filepath.Join(p.path, e.Name())); err != nil {
				return err
			}
		}
	}
	if err := os.Mkdir(p.second, 0o777); err != nil {
		return err
	}
	for name, b := range p.files {
		if err := os.WriteFile(filepath.Join(p.second, name), b, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// loads loads the newest checkpoint on both ranks and compares it with what was saved.
func (p *pair) loads(t *testing.T) (step int, told []string, err error) {
	err = onMesh(t, p.axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
		h, err := hold(p.draws[0], p.lies, m, false)
		if err != nil {
			return err
		}
		var lr float64
		var at, own int
		var loaded checkpoint.Loaded
		found, err := checkpoint.Load(ctx, g, storage.Dir(p.path), checkpoint.State{
			Sections: h.sections(), Values: map[string]any{"lr": &lr, "step": &at}, RankValues: map[string]any{"rank": &own},
		}, checkpoint.WithLoaded(&loaded))
		if err != nil || found == 0 {
			return err
		}
		if rank == 0 {
			step = found
			for _, d := range loaded.PassedOver {
				told = append(told, d.Error())
			}
		}
		if at != found || lr != 0.125 || own != rank {
			return fmt.Errorf("step %d has the values %d, %v, %d", found, at, lr, own)
		}
		want, err := hold(p.draws[found-1], p.lies, m, true)
		if err != nil {
			return err
		}
		h.want = want.want
		return h.compare()
	})
	return step, told, err
}

// verify opens the second checkpoint and reads every byte.
func (p *pair) verify(ctx context.Context) error {
	c, err := checkpoint.Open(ctx, storage.Dir(p.path), checkpoint.StepName(2))
	if err != nil {
		return err
	}
	return c.Verify(ctx, nil)
}

// TestDamagedBytes: a checkpoint with any other byte, or with less or more of them, is found to be
// damaged, by the name of the file. The one before it is loaded then, on all ranks, and that is told.
func TestDamagedBytes(t *testing.T) {
	p := newPair(t)
	seed := seeded.Of(t)
	names := sortedKeys(p.files)
	t.Logf("files: %q", names)
	trials(t, 120, func(i int) error {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		name := names[i%len(names)]
		b := slices.Clone(p.files[name])
		at := r.IntN(len(b))
		if r.IntN(3) == 0 {
			at = pick(r, 0, min(8, len(b)-1), len(b)-1, len(b)/2) // the header, the data, the end
		}
		what := ""
		switch r.IntN(6) {
		case 0:
			b, what = b[:at], fmt.Sprintf("cut to %d bytes", at)
		case 1:
			b, what = append(b, byte(r.Uint32())), "one byte more"
		case 2:
			clear(b[at:min(len(b), at+512)])
			what = fmt.Sprintf("512 zeros from byte %d", at)
		default:
			b[at] ^= 1 << r.IntN(8)
			what = fmt.Sprintf("another bit in byte %d of %d", at, len(b))
		}
		if slices.Equal(b, p.files[name]) {
			return nil
		}
		if err := p.restore(); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(p.second, name), b, 0o666); err != nil {
			return err
		}
		return p.refused(t, name+": "+what, name)
	})
}

// TestDamagedManifest: another bit in any byte of a manifest is found.
func TestDamagedManifest(t *testing.T) {
	p := newPair(t)
	r := rand.New(rand.NewPCG(seeded.Of(t), 6))
	if err := p.restore(); err != nil {
		t.Fatal(err)
	}
	text, every := p.files[storage.ManifestName], 13
	if *numTrials > 0 {
		every = 1
	}
	numRead := 0
	for at := 0; at < len(text); at += every {
		b := slices.Clone(text)
		b[at] ^= 1 << r.IntN(8)
		if err := os.WriteFile(filepath.Join(p.second, storage.ManifestName), b, 0o666); err != nil {
			t.Fatal(err)
		}
		var damaged *checkpoint.DamagedError
		if _, err := checkpoint.Open(t.Context(), storage.Dir(p.path), checkpoint.StepName(2)); !errors.As(err, &damaged) || damaged.File != storage.ManifestName {
			if numRead++; numRead <= 10 {
				t.Errorf("with another bit in byte %d, %q: %v", at, b[max(0, at-20):min(len(b), at+20)], err)
			}
		}
	}
	if numRead > 0 {
		t.Errorf("%d of %d changes were not found", numRead, len(text)/every)
	}
}

// refused wants the second checkpoint to be damaged: in a file, if that is not "".
func (p *pair) refused(t *testing.T, what, file string) error {
	err := p.verify(t.Context())
	var damaged *checkpoint.DamagedError
	if !errors.As(err, &damaged) || file != "" && damaged.File != file {
		return fmt.Errorf("%s: verified: %v", what, err)
	}
	// A load reads no more than it needs: not the headers of files, and not further files. What
	// it has loaded is the one or the other, whole.
	step, told, err := p.loads(t)
	if err != nil || step == 0 || step == 2 && file == storage.ManifestName {
		return fmt.Errorf("%s: step %d was loaded, %v", what, step, err)
	}
	if step == 1 && (len(told) != 1 || file != "" && !strings.Contains(told[0], file)) {
		return fmt.Errorf("%s: loading told %q", what, told)
	}
	return nil
}

// TestMissingAndStrangeFiles: a file that is gone, that is no file, or that lies elsewhere, is
// found. Files that nobody has listed do no harm.
func TestMissingAndStrangeFiles(t *testing.T) {
	p := newPair(t)
	elsewhere := filepath.Join(t.TempDir(), "file")
	for _, name := range sortedKeys(p.files) {
		path := filepath.Join(p.second, name)
		for what, spoil := range map[string]func() error{
			"is gone":              func() error { return nil },
			"is a folder":          func() error { return os.Mkdir(path, 0o777) },
			"is a link to nowhere": func() error { return os.Symlink(elsewhere+"x", path) },
			"is a link to itself":  func() error { return os.Symlink(path, path) },
			"is a link out of here": func() error {
				return errors.Join(os.WriteFile(elsewhere, p.files[name], 0o666), os.Symlink(elsewhere, path))
			},
		} {
			t.Run(name+" "+what, func(t *testing.T) {
				if err := errors.Join(p.restore(), os.Remove(path), spoil()); err != nil {
					t.Fatal(err)
				}
				file := name
				if name == storage.ManifestName {
					file = "" // then it is no checkpoint
				}
				err := p.verify(t.Context())
				var damaged *checkpoint.DamagedError
				if err == nil || file != "" && (!errors.As(err, &damaged) || damaged.File != file) {
					t.Errorf("verified: %v", err)
				}
				if step, _, err := p.loads(t); err != nil || step != 1 && name != "config.json" {
					t.Errorf("step %d was loaded, %v", step, err)
				}
			})
		}
	}
	t.Run("a file more", func(t *testing.T) {
		if err := errors.Join(p.restore(), os.WriteFile(filepath.Join(p.second, "notes.txt"), []byte("mine"), 0o666)); err != nil {
			t.Fatal(err)
		}
		if err := p.verify(t.Context()); err != nil {
			t.Error(err)
		}
		if step, told, err := p.loads(t); err != nil || step != 2 || len(told) > 0 {
			t.Errorf("step %d was loaded, %q, %v", step, told, err)
		}
	})
}

// hostile are manifests that no save writes. Each changes one thing.
var hostile = map[string]func(m, box, tensor map[string]any){
	"before its file":           func(m, box, tensor map[string]any) { box["at"] = -8 },
	"behind its file":           func(m, box, tensor map[string]any) { box["at"] = 1 << 40 },
	"at the largest number":     func(m, box, tensor map[string]any) { box["at"] = json.Number("9223372036854775807") },
	"beyond the largest number": func(m, box, tensor map[string]any) { box["at"] = json.Number("9223372036854775808") },
	"at a fraction":             func(m, box, tensor map[string]any) { box["at"] = 0.5 },
	"outside of its tensor":     func(m, box, tensor map[string]any) { box["start"] = []int{1 << 40, 0} },
	"at a negative place":       func(m, box, tensor map[string]any) { box["start"] = []int{-1, 0} },
	"over another box":          func(m, box, tensor map[string]any) { tensor["boxes"] = append(tensor["boxes"].([]any), box) },
	"not there":                 func(m, box, tensor map[string]any) { tensor["boxes"] = []any{} },
	"fewer dims":                func(m, box, tensor map[string]any) { box["shape"] = []int{165} },
	"negative dims":             func(m, box, tensor map[string]any) { box["shape"] = []int{-33, -5} },
	"a tensor of negative dims": func(m, box, tensor map[string]any) { tensor["shape"] = []int{-33, -5} },
	"billions of elements":      func(m, box, tensor map[string]any) { tensor["shape"] = []int{1 << 40, 1 << 40} },
	"billions of dims":          func(m, box, tensor map[string]any) { tensor["shape"] = make([]int, 100_000) },
	"billions of ranks":         func(m, box, tensor map[string]any) { m["ranks"] = 1 << 50 },
	"negative ranks":            func(m, box, tensor map[string]any) { m["ranks"] = -2 },
	"another step":              func(m, box, tensor map[string]any) { m["step"] = 7 },
	"a negative step":           func(m, box, tensor map[string]any) { m["step"] = -1 },
	"no dtype":                  func(m, box, tensor map[string]any) { tensor["dtype"] = "F33" },
	"a wider dtype":             func(m, box, tensor map[string]any) { tensor["dtype"] = "F64" },
	"no such file":              func(m, box, tensor map[string]any) { box["file"] = "model-9.safetensors" },
	"a file of the system":      func(m, box, tensor map[string]any) { box["file"] = "/etc/passwd" },
	"a file of another":         func(m, box, tensor map[string]any) { box["file"] = "../step-00000001/config.json" },
	"too few checksums":         func(m, box, tensor map[string]any) { box["crc32c"] = []any{} },
	"too many checksums":        func(m, box, tensor map[string]any) { box["crc32c"] = []any{"00000000", "00000000"} },
	"no checksum":               func(m, box, tensor map[string]any) { box["crc32c"] = []any{"xyz"} },
	"other members":             func(m, box, tensor map[string]any) { m["code"] = "print(1)" },
	"a folder out of here":      func(m, box, tensor map[string]any) { m["folder"] = "../step-00000001" },
	"a folder of the system":    func(m, box, tensor map[string]any) { m["folder"] = "/etc" },
	"files out of here": func(m, box, tensor map[string]any) {
		m["files"].([]any)[0].(map[string]any)["name"] = "../step-00000001/config.json"
	},
	"files of the system": func(m, box, tensor map[string]any) { m["files"].([]any)[0].(map[string]any)["name"] = "/etc/passwd" },
	"files of Windows":    func(m, box, tensor map[string]any) { m["files"].([]any)[0].(map[string]any)["name"] = `C:\boot.ini` },
	"files twice":         func(m, box, tensor map[string]any) { m["files"] = append(m["files"].([]any), m["files"].([]any)[0]) },
	"files of less than no bytes": func(m, box, tensor map[string]any) {
		m["files"].([]any)[0].(map[string]any)["bytes"] = -1
	},
	"files of the most bytes": func(m, box, tensor map[string]any) {
		m["files"].([]any)[0].(map[string]any)["bytes"] = json.Number("9223372036854775807")
	},
	"a future version": func(m, box, tensor map[string]any) { m["version"] = 99 },
	"no version":       func(m, box, tensor map[string]any) { delete(m, "version") },
	"another format":   func(m, box, tensor map[string]any) { m["format"] = "something-else" },
}

// TestHostileManifests: manifests that somebody made up are refused before anything of them is
// believed: no file outside the checkpoint is opened, and no memory taken.
func TestHostileManifests(t *testing.T) {
	p := newPair(t)
	for _, what := range sortedKeys(hostile) {
		t.Run(what, func(t *testing.T) {
			var m map[string]any
			if err := json.Unmarshal(p.files[storage.ManifestName], &m); err != nil {
				t.Fatal(err)
			}
			tensor := m["tensors"].(map[string]any)[checkpoint.Model].(map[string]any)["layers.0.weight"].(map[string]any)
			hostile[what](m, tensor["boxes"].([]any)[0].(map[string]any), tensor)
			p.refuseManifest(t, marshal(t, m))
		})
	}
	deep := strings.Repeat(`{"a":`, 1_000_000) + "1" + strings.Repeat("}", 1_000_000)
	texts := map[string]string{
		"nothing": "", "a number": "7", "a list": "[]", "null": "null", "an empty object": "{}", "no text": "\xff\xfe\x00", "spaces": strings.Repeat(" ", 1<<20),
		"deep": deep, "deep values": `{"format":"cohort-checkpoint","version":2,"step":2,"values":` + deep + `}`,
		"deep lists": strings.Repeat("[", 1_000_000),
	}
	for what, text := range texts {
		t.Run(what, func(t *testing.T) { p.refuseManifest(t, []byte(text)) })
	}
}

// refuseManifest wants a manifest to be refused by name, for little memory.
func (p *pair) refuseManifest(t *testing.T, text []byte) {
	t.Helper()
	if err := errors.Join(p.restore(), os.WriteFile(filepath.Join(p.second, storage.ManifestName), resealed(text), 0o666)); err != nil {
		t.Fatal(err)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	if err := p.refused(t, "hostile", storage.ManifestName); err != nil {
		// Where a manifest names a file and lies about it, that file is found to differ.
		if err := p.refused(t, "hostile", ""); err != nil {
			t.Error(err)
		}
	}
	runtime.ReadMemStats(&after)
	if taken := after.TotalAlloc - before.TotalAlloc; taken > 256<<20 {
		t.Errorf("refusing %d bytes took %d bytes of memory", len(text), taken)
	}
	listed, err := checkpoint.Steps(t.Context(), storage.Dir(p.path))
	if err != nil || len(listed) < 1 {
		t.Errorf("%d are listed, %v", len(listed), err)
	}
}

func marshal(t *testing.T, v map[string]any) []byte {
	t.Helper()
	delete(v, "crc32c") // of the manifest itself, which resealed adds
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// resealed is what somebody who makes up a manifest does last: it gets the checksum of its own
// at its end.
func resealed(text []byte) []byte {
	var m map[string]any
	if err := json.Unmarshal(text, &m); err != nil || m["version"] == nil {
		return text
	}
	at := bytes.LastIndex(text, []byte(",\n  \"crc32c\": "))
	if at < 0 {
		at = bytes.LastIndexByte(text, '}')
	}
	body := bytes.TrimSpace(text[:at])
	return fmt.Appendf(body, ",\n  \"crc32c\": \"%08x\"\n}\n", crc32.Checksum(body, crc32.MakeTable(crc32.Castagnoli)))
}

// TestOtherModels: a checkpoint of another model is refused by the names that differ, on all ranks.
// It is not damaged, and nothing changes.
func TestOtherModels(t *testing.T) {
	p := newPair(t)
	for what, c := range map[string]struct {
		spoil func(d []tensorDraw) []tensorDraw
		names []string
	}{
		"a tensor more": {func(d []tensorDraw) []tensorDraw {
			return append(d, optimizerOf(1, []int{2}, []int{2}, []int{2}, []int{4})[12])
		}, []string{"layers.3.weight"}},
		"a tensor less": {func(d []tensorDraw) []tensorDraw { return d[1:] }, []string{"layers.0.weight"}},
		"another shape": {func(d []tensorDraw) []tensorDraw { d[0].shape = []int{5, 33}; return d }, []string{"layers.0.weight", "33 5", "5 33"}},
	} {
		t.Run(what, func(t *testing.T) {
			if err := p.restore(); err != nil {
				t.Fatal(err)
			}
			draws := c.spoil(slices.Clone(p.draws[1]))
			lies := liesAs(draws, mesh.Shard(0))
			err := onMesh(t, p.axes, func(ctx context.Context, g *dist.Group, m *mesh.Mesh, rank int) error {
				h, err := hold(draws, lies, m, false)
				if err != nil {
					return err
				}
				_, err = checkpoint.Load(ctx, g, storage.Dir(p.path), checkpoint.State{Sections: h.sections()})
				var differ *checkpoint.StateDictError
				if !errors.As(err, &differ) {
					return fmt.Errorf("rank %d: %w", rank, err)
				}
				for _, name := range c.names {
					if !strings.Contains(err.Error(), name) {
						return fmt.Errorf("rank %d: %w: want it to name %s", rank, err, name)
					}
				}
				for _, part := range h.parts {
					if b := part.Local.Contiguous().Buffer().Data; len(b) > 0 && b[0] != 1 {
						return fmt.Errorf("rank %d: %s has changed", rank, part.Name)
					}
				}
				return nil
			})
			if err != nil {
				t.Error(err)
			}
			if step, told, err := p.loads(t); step != 2 || len(told) > 0 || err != nil {
				t.Errorf("afterwards step %d is loaded, %q, %v", step, told, err)
			}
		})
	}
}
