// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// Limits of a fingerprint from outside.
const (
	MaxBytes   = 512 << 10 // of all names and values
	maxName    = 200       // bytes of the name of a section or key
	maxValue   = 8 << 10   // bytes of a value
	maxEntries = 16 << 10  // keys
)

// The sections. Others are refused.
const (
	Program   = "program"   // what is run
	Cohort    = "cohort"    // this binary
	System    = "system"    // kernel, libc, distribution
	CPU       = "cpu"       // model, features, cores
	Memory    = "memory"    // of the machine and the cgroup, /dev/shm
	Limits    = "limits"    // ulimit
	Network   = "network"   // interfaces, names, sysctl
	Clock     = "clock"     // whether it is kept right, and by whom
	GPU       = "gpu"       // devices, driver, libraries
	Python    = "python"    // the interpreter
	Packages  = "packages"  // the packages of the Python environment
	Variables = "variables" // environment variables that change what programs do
	Run       = "run"       // hashes of model, data and settings
)

// Sections returns the names of all sections in the order in which they are printed.
func Sections() []string {
	return []string{Program, Cohort, System, CPU, Memory, Limits, Network, Clock, GPU, Python, Packages, Variables, Run}
}

// Fingerprint is the environment of a process. The zero value is empty.
type Fingerprint struct {
	sections map[string]map[string]string
}

// Set sets a value. The empty value removes the key.
func (f *Fingerprint) Set(section, key, value string) {
	if value == "" {
		delete(f.sections[section], key)
		return
	}
	if f.sections == nil {
		f.sections = map[string]map[string]string{}
	}
	if f.sections[section] == nil {
		f.sections[section] = map[string]string{}
	}
	f.sections[section][key] = clean(value)
}

// clean makes a value one line of valid text that is not too long.
func clean(value string) string {
	value = strings.Map(func(c rune) rune {
		if c < ' ' || c == 0x7f || c == utf8.RuneError {
			return ' '
		}
		return c
	}, strings.TrimSpace(value))
	if len(value) > maxValue {
		value = strings.ToValidUTF8(value[:maxValue-3], "") + "…"
	}
	return value
}

// Get returns a value, "" if there is none.
func (f *Fingerprint) Get(section, key string) string { return f.sections[section][key] }

// Has says whether there is anything of a section.
func (f *Fingerprint) Has(section string) bool { return len(f.sections[section]) > 0 }

// Keys returns the sorted keys of a section.
func (f *Fingerprint) Keys(section string) []string {
	return slices.Sorted(maps.Keys(f.sections[section]))
}

// Map returns a copy of all values by section and key.
func (f *Fingerprint) Map() map[string]map[string]string {
	m := make(map[string]map[string]string, len(f.sections))
	for name, values := range f.sections {
		if len(values) > 0 {
			m[name] = maps.Clone(values)
		}
	}
	return m
}

// FromMap makes a fingerprint of values from outside, and checks its limits.
func FromMap(m map[string]map[string]string) (*Fingerprint, error) {
	f := &Fingerprint{}
	known := Sections()
	bytes, entries := 0, 0
	for _, name := range slices.Sorted(maps.Keys(m)) {
		if !slices.Contains(known, name) {
			return nil, fmt.Errorf("section %.40q is none of a fingerprint: want %s; a newer Cohort may have written it", name, strings.Join(known, ", "))
		}
		for _, key := range slices.Sorted(maps.Keys(m[name])) {
			value := m[name][key]
			switch {
			case key == "" || len(key) > maxName:
				return nil, fmt.Errorf("section %s has a key of %d bytes: want 1 to %d", name, len(key), maxName)
			case strings.ContainsFunc(key, func(c rune) bool { return c < ' ' || c == 0x7f || c == utf8.RuneError }):
				return nil, fmt.Errorf("section %s has a key with control characters: %q", name, key)
			case len(value) > maxValue+3:
				return nil, fmt.Errorf("the value of %s.%s has %d bytes: want at most %d", name, key, len(value), maxValue)
			}
			if bytes, entries = bytes+len(key)+len(value), entries+1; bytes > MaxBytes || entries > maxEntries {
				return nil, fmt.Errorf("the fingerprint has more than %d bytes or %d keys", MaxBytes, maxEntries)
			}
			f.Set(name, key, value)
		}
	}
	return f, nil
}

// MarshalJSON writes the values by section and key.
func (f *Fingerprint) MarshalJSON() ([]byte, error) { return json.Marshal(f.Map()) }

// UnmarshalJSON reads what MarshalJSON has written. It checks limits.
func (f *Fingerprint) UnmarshalJSON(b []byte) error {
	if len(b) > 4*MaxBytes {
		return fmt.Errorf("a fingerprint of %d bytes: want at most %d", len(b), 4*MaxBytes)
	}
	var m map[string]map[string]string
	if err := json.Unmarshal(b, &m); err != nil {
		return fmt.Errorf("this is no fingerprint: %w", err)
	}
	g, err := FromMap(m)
	if err != nil {
		return err
	}
	*f = *g
	return nil
}

// Digest is a hash of what is compared: equal digests mean that [Diff] finds nothing.
func (f *Fingerprint) Digest() string {
	h := sha256.New()
	for _, name := range Sections() {
		for _, key := range f.Keys(name) {
			if RuleOf(name, key).Kind != Told {
				fmt.Fprintf(h, "%s\x00%s\x00%s\n", name, key, f.sections[name][key])
			}
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:16])
}
