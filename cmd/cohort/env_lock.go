// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/pelletier/go-toml/v2"
)

// pylock is a file pylock.toml of PEP 751, so far as a list of pip can say the same.
type pylock struct {
	Version  string `toml:"lock-version"`
	Packages []struct {
		Name      string       `toml:"name"`
		Version   string       `toml:"version"`
		Marker    string       `toml:"marker"`
		Index     string       `toml:"index"`
		Wheels    []lockedFile `toml:"wheels"`
		SDist     *lockedFile  `toml:"sdist"`
		Archive   *lockedFile  `toml:"archive"`
		VCS       any          `toml:"vcs"`
		Directory any          `toml:"directory"`
	} `toml:"packages"`
}

type lockedFile struct {
	URL    string            `toml:"url"`
	Hashes map[string]string `toml:"hashes"`
}

// maxLocked bounds the packages of a lock file.
const maxLocked = 8000

var (
	lockedName    = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,199}$`)
	lockedVersion = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+!-]{0,199}$`)
	lockedHash    = regexp.MustCompile(`^[0-9a-fA-F]{32,128}$`)
)

// usualIndex is where pip and uv look for packages by themselves.
const usualIndex = "https://pypi.org/simple"

// requirementsOfPylock makes of a pylock.toml a requirements.txt with the same packages, hashes
// and conditions.
func requirementsOfPylock(text []byte) (string, error) {
	var lock pylock
	if err := toml.Unmarshal(text, &lock); err != nil {
		var syntax *toml.DecodeError
		if errors.As(err, &syntax) {
			line, column := syntax.Position()
			return "", fmt.Errorf("line %d, column %d: %s", line, column, strings.TrimPrefix(syntax.Error(), "toml: "))
		}
		return "", errors.New(strings.TrimPrefix(err.Error(), "toml: "))
	}
	switch {
	case !strings.HasPrefix(lock.Version, "1."):
		return "", fmt.Errorf("lock-version is %.20q: want 1.0, as in PEP 751; a newer tool has written the file", lock.Version)
	case len(lock.Packages) == 0 || len(lock.Packages) > maxLocked:
		return "", fmt.Errorf("it locks %d packages: want 1 to %d", len(lock.Packages), maxLocked)
	}
	var b strings.Builder
	indexes := map[string]bool{}
	for _, p := range lock.Packages {
		if !lockedName.MatchString(p.Name) {
			return "", fmt.Errorf("a package has the name %.60q, which is none", p.Name)
		}
		if p.VCS != nil || p.Directory != nil {
			return "", fmt.Errorf("package %s comes from a directory or a version control system, which has no hash: lock a released version, or leave it out (uv export --no-emit-project) and install it by hand", p.Name)
		}
		line := p.Name
		var files []lockedFile
		switch {
		case p.Archive != nil:
			if !isAddress(p.Archive.URL) {
				return "", fmt.Errorf("package %s has the address %.80q: want https://…", p.Name, p.Archive.URL)
			}
			line, files = line+" @ "+p.Archive.URL, []lockedFile{*p.Archive}
		case !lockedVersion.MatchString(p.Version):
			return "", fmt.Errorf("package %s has the version %.60q, which is none", p.Name, p.Version)
		default:
			line, files = line+"=="+p.Version, p.Wheels
			if p.SDist != nil {
				files = append(slices.Clone(files), *p.SDist)
			}
		}
		if p.Marker != "" {
			if strings.ContainsAny(p.Marker, "\n\r\\#") || len(p.Marker) > 4096 {
				return "", fmt.Errorf("package %s has the condition %.60q, which is none", p.Name, p.Marker)
			}
			line += " ; " + p.Marker
		}
		hashes := map[string]bool{}
		for _, f := range files {
			for _, kind := range slices.Sorted(maps.Keys(f.Hashes)) {
				if slices.Contains([]string{"sha256", "sha384", "sha512"}, kind) && lockedHash.MatchString(f.Hashes[kind]) {
					hashes[kind+":"+f.Hashes[kind]] = true
				}
			}
		}
		if len(hashes) == 0 {
			return "", fmt.Errorf("package %s has no file with a hash sha256, sha384 or sha512", p.Name)
		}
		for _, h := range slices.Sorted(maps.Keys(hashes)) {
			line += " \\\n    --hash=" + h
		}
		if index := strings.TrimSuffix(p.Index, "/"); index != "" && index != usualIndex {
			if !isAddress(index) {
				return "", fmt.Errorf("package %s has the index %.80q: want https://…", p.Name, p.Index)
			}
			indexes[index] = true
		}
		b.WriteString(line + "\n")
	}
	head := ""
	for _, index := range slices.Sorted(maps.Keys(indexes)) {
		head += "--extra-index-url " + index + "\n"
	}
	return head + b.String(), nil
}

// isAddress says whether a text is an address that a line of a list can hold.
func isAddress(text string) bool {
	if len(text) > 2000 || strings.ContainsFunc(text, func(c rune) bool { return c <= ' ' || c == '\\' || c == 0x7f }) {
		return false
	}
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Host != "" || err == nil && u.Scheme == "file" && u.Path != ""
}
