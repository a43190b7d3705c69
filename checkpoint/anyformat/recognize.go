// SPDX-License-Identifier: Apache-2.0

package anyformat

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint"
	"github.com/cohort-ml/cohort/checkpoint/storage"
)

// Kind is what lies at a location.
type Kind string

// The kinds that exist.
const (
	Run         Kind = "Cohort run"
	Checkpoint  Kind = "Cohort checkpoint"
	HuggingFace Kind = "Hugging Face folder"
	Safetensors Kind = "safetensors file"
	Torch       Kind = "torch.save file"
	DCP         Kind = "PyTorch DCP checkpoint"
)

// Location is a file or a folder in a storage.
type Location struct {
	Text   string          // as the user gave it, for messages
	Parent storage.Storage // in which Name lies
	Name   string
	Inside storage.Storage // the folder itself; nil for a file
}

// The files by which folders are recognised.
const (
	manifestFile   = "manifest.json"
	dcpFile        = ".metadata"
	weightsFile    = "model.safetensors"
	indexFile      = weightsFile + ".index.json"
	adapterFile    = "adapter_model.safetensors"
	torchFile      = "pytorch_model.bin"
	torchIndexFile = torchFile + ".index.json"
	configFile     = "config.json"
)

// UnknownError says that there is nothing at a location that Cohort reads.
type UnknownError struct {
	Location string
	Problem  string
}

func (e *UnknownError) Error() string { return fmt.Sprintf("%s %s", e.Location, e.Problem) }

// Recognize returns what lies at a location, by its content.
func Recognize(ctx context.Context, at Location) (Kind, error) {
	if at.Inside == nil {
		return recognizeFile(ctx, at)
	}
	return recognizeFolder(ctx, at)
}

// foreign are the formats that are refused by name. The first bytes tell them.
var foreign = []struct{ magic, problem string }{
	{"GGUF", "is a GGUF file, which holds quantized blocks: give the safetensors files that it was made from"},
	{"\x89HDF\r\n", "is an HDF5 file: save it as safetensors with the tool that wrote it"},
	{"\x93NUMPY", "is a NumPy array: save it as safetensors with the tool that wrote it"},
	{"\x1f\x8b", "is compressed with gzip: unpack it first"},
	{"\x28\xb5\x2f\xfd", "is compressed with zstd: unpack it first"},
	{"version https://git-lfs", "is a pointer of Git LFS, not the weights: run git lfs pull"},
	{"<!DOCTYPE", "is a web page, not weights: give the address of the file itself"},
	{"<html", "is a web page, not weights: give the address of the file itself"},
}

func recognizeFile(ctx context.Context, at Location) (Kind, error) {
	f, err := at.Parent.Open(ctx, at.Name)
	if err != nil {
		return "", openError(at, err)
	}
	defer f.Close()
	head := make([]byte, min(f.Size(), 64))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return "", fmt.Errorf("%s: %w", at.Text, err)
	}
	return kindOf(at.Text, head, f.Size())
}

// kindOf recognises a file by its first bytes.
func kindOf(name string, head []byte, size int64) (Kind, error) {
	unknown := func(problem string) (Kind, error) { return "", &UnknownError{name, problem} }
	for _, f := range foreign {
		if bytes.HasPrefix(head, []byte(f.magic)) {
			return unknown(f.problem)
		}
	}
	switch {
	case size == 0:
		return unknown("is an empty file")
	case bytes.HasPrefix(head, []byte("PK\x03\x04")):
		return Torch, nil
	case len(head) >= 2 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5:
		// The pickle of a torch.save file of before 1.6, which is refused where it is opened.
		return Torch, nil
	case len(head) >= 9 && head[8] == '{' && binary.LittleEndian.Uint64(head) < 1<<40:
		return Safetensors, nil
	case head[0] == '{':
		return unknown("is a JSON file, not weights: give the folder that it lies in")
	case len(head) < 9:
		return unknown(fmt.Sprintf("has only %d bytes, too few for any format: it was cut short, copy it again", size))
	}
	return unknown("is in no format that Cohort reads (safetensors, torch.save; folders of Cohort, Hugging Face and DCP): its first bytes are those of none")
}

// openError puts the location into an error of the storage.
func openError(at Location, err error) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return &AccessError{at.Text, "does not exist", err}
	case errors.Is(err, fs.ErrPermission):
		return &AccessError{at.Text, "may not be read by this user", err}
	}
	return fmt.Errorf("%s: %w", at.Text, err)
}

// AccessError says that a location does not exist, or may not be read.
type AccessError struct {
	Location string
	Problem  string
	Err      error // wraps fs.ErrNotExist or fs.ErrPermission
}

func (e *AccessError) Error() string { return e.Location + " " + e.Problem }
func (e *AccessError) Unwrap() error { return e.Err }

// has reports whether a folder has a file. A storage such as a web server lists
// nothing, so files are asked for by name.
func has(ctx context.Context, at Location, name string) (bool, error) {
	f, err := at.Inside.Open(ctx, name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, openError(Location{Text: path.Join(at.Text, name)}, err)
	}
	return true, f.Close()
}

func recognizeFolder(ctx context.Context, at Location) (Kind, error) {
	// Such a folder has the files of a checkpoint, but not all of them, or not all of their bytes.
	if base, _, isStage := strings.Cut(at.Name, ".tmp-"); isStage {
		if _, ok := checkpoint.ParseStep(base); ok {
			return "", &UnknownError{at.Text, "is what a save has written that did not end, no checkpoint: give the run, and see cohort ckpt ls"}
		}
	}
	for _, f := range []struct {
		name string
		kind Kind
	}{
		{manifestFile, Checkpoint}, {dcpFile, DCP}, {weightsFile, HuggingFace}, {indexFile, HuggingFace},
		{adapterFile, HuggingFace}, {torchFile, Torch}, {torchIndexFile, Torch},
	} {
		found, err := has(ctx, at, f.name)
		if err != nil {
			return "", err
		}
		if !found {
			continue
		}
		if f.kind == Checkpoint {
			if ours, err := isManifest(ctx, at); err != nil || !ours {
				if err != nil {
					return "", err
				}
				continue
			}
		}
		return f.kind, nil
	}
	entries, err := at.Inside.List(ctx, "")
	if errors.Is(err, errors.ErrUnsupported) {
		return "", &UnknownError{at.Text, fmt.Sprintf("has no %s, %s, %s or %s, and this server lists no files: give the address of a checkpoint or of a file", manifestFile, weightsFile, indexFile, dcpFile)}
	}
	if err != nil {
		return "", openError(at, err)
	}
	var names []string
	numShards := 0
	for _, e := range entries {
		if e.IsFolder && strings.HasPrefix(e.Name, "step-") {
			return Run, nil
		}
		if !e.IsFolder && strings.HasSuffix(e.Name, ".safetensors") {
			numShards++
		}
		names = append(names, e.Name)
	}
	switch {
	case numShards > 0:
		return HuggingFace, nil
	case len(names) == 0:
		return "", &UnknownError{at.Text, "is empty: there is no checkpoint"}
	}
	slices.Sort(names)
	const most = 5
	text := ""
	if len(names) > most {
		text, names = fmt.Sprintf(" and %d more", len(names)-most), names[:most]
	}
	return "", &UnknownError{at.Text, fmt.Sprintf("has no checkpoint: no steps of a run, no %s, %s or %s (it has %q%s)", manifestFile, weightsFile, dcpFile, names, text)}
}

// isManifest reports whether the manifest of a folder is one of Cohort's: other tools
// use the name too. One that cannot be read is taken for Cohort's, so that whoever opens
// the checkpoint tells what is wrong with it.
func isManifest(ctx context.Context, at Location) (bool, error) {
	f, err := at.Inside.Open(ctx, manifestFile)
	if err != nil {
		return false, openError(at, err)
	}
	defer f.Close()
	head := make([]byte, min(f.Size(), 256))
	if _, err := f.ReadAt(head, 0); err != nil && !errors.Is(err, io.EOF) {
		return false, fmt.Errorf("%s: %s: %w", at.Text, manifestFile, err)
	}
	d := json.NewDecoder(bytes.NewReader(head))
	if open, err := d.Token(); err != nil || open != json.Delim('{') {
		return true, nil
	}
	key, err := d.Token()
	return err != nil || key == "format" || bytes.Contains(head, []byte("cohort")), nil
}
