// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// ManifestName is the file in a checkpoint that lists the others.
const ManifestName = "manifest.json"

const (
	manifestFormat   = "cohort-checkpoint"
	manifestVersion  = 1
	maxManifestBytes = 16 << 20
	maxNameBytes     = 255
)

// castagnoli is the polynomial of CRC-32C, for which processors have an instruction.
var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// FileInfo is one file of a checkpoint as its manifest describes it.
type FileInfo struct {
	Name  string
	Bytes int64
	CRC   uint32 // CRC-32C of the whole file
}

// manifest is the content of manifest.json, in its JSON form.
type manifest struct {
	Format  string         `json:"format"`
	Version int            `json:"version"`
	Step    int            `json:"step"`
	Files   []manifestFile `json:"files"`
}

type manifestFile struct {
	Name  string `json:"name"`
	Bytes int64  `json:"bytes"`
	CRC   string `json:"crc32c"` // 8 hexadecimal digits
}

func encodeManifest(step int, files []FileInfo) []byte {
	m := manifest{Format: manifestFormat, Version: manifestVersion, Step: step, Files: []manifestFile{}}
	for _, f := range files {
		m.Files = append(m.Files, manifestFile{f.Name, f.Bytes, fmt.Sprintf("%08x", f.CRC)})
	}
	b, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		panic(err) // strings and numbers always marshal
	}
	return append(b, '\n')
}

// parseManifest reads a manifest and returns its step and files, in the order
// written. Anything that Save would not have written is an error.
func parseManifest(text []byte) (step int, files []FileInfo, err error) {
	var m manifest
	// A later version may have fields that this one does not know: look at
	// the version before anything else.
	var head struct {
		Format  string `json:"format"`
		Version int    `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return 0, nil, fmt.Errorf("is not JSON: %w", err)
	}
	if head.Format != manifestFormat {
		return 0, nil, fmt.Errorf("has format %q, not %q", head.Format, manifestFormat)
	}
	if head.Version != manifestVersion {
		return 0, nil, fmt.Errorf("has version %d, this program reads version %d: use the program that wrote it, or a newer one", head.Version, manifestVersion)
	}
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	if err := d.Decode(&m); err != nil {
		return 0, nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return 0, nil, errors.New("has something after its end")
	}
	if m.Step < 0 {
		return 0, nil, fmt.Errorf("has the negative step %d", m.Step)
	}
	seen := map[string]bool{}
	for _, f := range m.Files {
		if err := checkName(f.Name); err != nil {
			return 0, nil, err
		}
		if seen[f.Name] {
			return 0, nil, fmt.Errorf("lists %q twice", f.Name)
		}
		seen[f.Name] = true
		if f.Bytes < 0 {
			return 0, nil, fmt.Errorf("gives %q the size %d", f.Name, f.Bytes)
		}
		sum, err := hex.DecodeString(f.CRC)
		if err != nil || len(sum) != 4 || strings.ToLower(f.CRC) != f.CRC {
			return 0, nil, fmt.Errorf("gives %q the checksum %q, not 8 hexadecimal digits", f.Name, f.CRC)
		}
		crc, _ := strconv.ParseUint(f.CRC, 16, 32)
		files = append(files, FileInfo{f.Name, f.Bytes, uint32(crc)})
	}
	return m.Step, files, nil
}

// checkName accepts the names that a file of a checkpoint may have: plain ones
// that mean the same on every file system.
func checkName(name string) error {
	switch {
	case name == "" || len(name) > maxNameBytes || !utf8.ValidString(name):
		return fmt.Errorf("%q is no name for a file: it must have 1 to %d bytes of UTF-8", name, maxNameBytes)
	case name == ManifestName:
		return fmt.Errorf("the name %q belongs to the manifest itself", name)
	case strings.ContainsAny(name, `/\:`) || strings.ContainsFunc(name, func(r rune) bool { return r < ' ' }) || !filepath.IsLocal(name) || name[0] == '.':
		return fmt.Errorf("%q is no plain file name: no separators, no leading dot", name)
	}
	return nil
}

// stepName returns the name of a step's directory; names sort as steps do up
// to step 99,999,999.
func stepName(step int) string { return fmt.Sprintf("step-%08d", step) }

// parseStep is the inverse of stepName.
func parseStep(name string) (step int, ok bool) {
	digits, ok := strings.CutPrefix(name, "step-")
	if !ok {
		return 0, false
	}
	step, err := strconv.Atoi(digits)
	return step, err == nil && step >= 0 && stepName(step) == name
}

// isTemp says whether name is a directory that a save or a prune works in.
func isTemp(name string) bool {
	base, suffix, ok := strings.Cut(name, tempInfix)
	_, isStep := parseStep(base)
	return ok && isStep && suffix != ""
}

const (
	tempInfix    = ".tmp-"
	damagedInfix = ".damaged-"
)

// sortFiles orders files by name, so that equal checkpoints have equal manifests.
func sortFiles(files []FileInfo) {
	slices.SortFunc(files, func(a, b FileInfo) int { return strings.Compare(a.Name, b.Name) })
}
