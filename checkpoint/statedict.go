// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"strings"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
)

// Mismatch is a tensor that both the file and the model have, differently.
type Mismatch struct {
	Name       string
	Have, Want safetensors.Info // the file's, the model's
}

// StateDictError lists at once everything (its message the first hundred of each
// kind) in which the tensors of a file are
// not those that a model or, for the section [Optimizer], an optimizer wants, as when the
// checkpoint is another one's.
type StateDictError struct {
	File      string
	Missing   []string // the model wants them, the file lacks them
	Extra     []string // the file has them, the model knows nothing of them
	Misshapen []Mismatch
}

func (e *StateDictError) Error() string {
	owner := "model"
	if strings.HasSuffix(strings.TrimSuffix(e.File, ".safetensors"), Optimizer) {
		owner = "optimizer"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "checkpoint: %s does not fit the %s (%d missing, %d extra, %d misshapen): load it into the %[2]s that it was saved from", e.File, owner, len(e.Missing), len(e.Extra), len(e.Misshapen))
	lines := func(n int, line func(i int)) {
		const most = 100 // of a list: a file that is wholly another's has thousands
		for i := range min(n, most) {
			b.WriteString("\n  ")
			line(i)
		}
		if n > most {
			fmt.Fprintf(&b, "\n  and %d more", n-most)
		}
	}
	lines(len(e.Missing), func(i int) { fmt.Fprintf(&b, "missing    %s", e.Missing[i]) })
	lines(len(e.Extra), func(i int) { fmt.Fprintf(&b, "extra      %s", e.Extra[i]) })
	lines(len(e.Misshapen), func(i int) {
		m := e.Misshapen[i]
		fmt.Fprintf(&b, "misshapen  %s: the file has %v %v, the %s %v %v", m.Name, m.Have.Shape, m.Have.DType, owner, m.Want.Shape, m.Want.DType)
	})
	return b.String()
}

// MatchStateDict compares the tensors that a file has with those that a model
// wants; the order does not matter. It returns nil or a [StateDictError] whose
// lists are sorted by name.
func MatchStateDict(file string, have, want []safetensors.Info) error {
	e := &StateDictError{File: file}
	byName := make(map[string]safetensors.Info, len(have))
	for _, h := range have {
		byName[h.Name] = h
	}
	wanted := make(map[string]bool, len(want))
	for _, w := range want {
		wanted[w.Name] = true
		h, ok := byName[w.Name]
		switch {
		case !ok:
			e.Missing = append(e.Missing, w.Name)
		case h.DType != w.DType || !slices.Equal(h.Shape, w.Shape):
			e.Misshapen = append(e.Misshapen, Mismatch{w.Name, h, w})
		}
	}
	for _, h := range have {
		if !wanted[h.Name] {
			e.Extra = append(e.Extra, h.Name)
		}
	}
	if len(e.Missing)+len(e.Extra)+len(e.Misshapen) == 0 {
		return nil
	}
	slices.Sort(e.Missing)
	slices.Sort(e.Extra)
	slices.SortFunc(e.Misshapen, func(a, b Mismatch) int { return strings.Compare(a.Name, b.Name) })
	return e
}

// Fingerprint identifies a model by the names, dtypes and shapes of its
// tensors, in whatever order they are given; their values do not enter. It is
// 64 hexadecimal digits.
func Fingerprint(tensors []safetensors.Info) string {
	lines := make([]string, len(tensors))
	for i, t := range tensors {
		lines[i] = fmt.Sprintf("%q %v %v\n", t.Name, t.DType, t.Shape)
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "")))
	return hex.EncodeToString(sum[:])
}
