// SPDX-License-Identifier: Apache-2.0

package fingerprint

import (
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Pin is a package of a list with the version that the list demands.
type Pin struct {
	Name, Version string
	// Maybe says that a condition stands behind the package, so that it may be left out.
	Maybe bool
}

var (
	pinned   = regexp.MustCompile(`^([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[[^\]]*\])?\s*===?\s*([A-Za-z0-9][A-Za-z0-9._+!-]*)\s*(.*)$`)
	condaURL = regexp.MustCompile(`^(?:https?|file)://[^\s#]+/([A-Za-z0-9_.-]+)-([A-Za-z0-9._+!]+)-([A-Za-z0-9_.]+)\.(?:conda|tar\.bz2)(?:#\S+)?$`)
)

// Pins returns the packages that a file requirements.txt pins to one version, in its order.
// Lines with ranges, options and addresses demand no version, and are left out.
func Pins(requirements string) []Pin {
	var out []Pin
	joined := strings.NewReplacer("\\\r\n", " ", "\\\n", " ").Replace(strings.TrimPrefix(requirements, "\ufeff"))
	for line := range strings.Lines(joined) {
		if line, _, _ = strings.Cut(strings.TrimSpace(line), " #"); strings.HasPrefix(line, "#") {
			continue
		}
		line, _, _ = strings.Cut(line, " --hash")
		m := pinned.FindStringSubmatch(strings.TrimSpace(line))
		if m == nil || len(m[1]) > maxName || len(m[2]) > maxName || strings.HasSuffix(m[2], ".") {
			continue
		}
		if rest := strings.TrimSpace(m[3]); rest == "" || strings.HasPrefix(rest, ";") {
			out = append(out, Pin{normal(m[1]), m[2], rest != ""})
		}
	}
	return out
}

// ExplicitPins returns the packages of an explicit list of conda: name, version and build.
func ExplicitPins(list string) []Pin {
	var out []Pin
	for line := range strings.Lines(list) {
		if m := condaURL.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			out = append(out, Pin{strings.ToLower(m[1]), m[2] + " conda " + m[3], false})
		}
	}
	return out
}

// CheckPins compares an environment with the packages that a list demands.
func (f *Fingerprint) CheckPins(pins []Pin) []Finding {
	expected := &Fingerprint{}
	found := &Fingerprint{sections: map[string]map[string]string{Python: f.sections[Python]}}
	for _, p := range pins {
		got := f.Get(Packages, p.Name)
		switch {
		case got == "" && p.Maybe, expected.Get(Packages, p.Name) == got && got != "":
			continue // of lines for the same package, one is right
		case !strings.Contains(p.Version, " conda "):
			got, _, _ = strings.Cut(got, " ")
		default:
			if words := strings.Fields(got); len(words) > 3 {
				got = strings.Join(words[:3], " ") // without the channel
			}
		}
		if sameVersion(p.Version, got) {
			got = p.Version
		}
		expected.Set(Packages, p.Name, p.Version)
		found.Set(Packages, p.Name, got)
	}
	if !found.Has(Packages) && expected.Has(Packages) {
		found.Set(Packages, "pip", "0") // a section that is there, and has none of them
	}
	return Diff(expected, found)
}

// sameVersion says whether two versions are equal: 1.0 is 1.0.0, and 1.0+cpu satisfies 1.0.
func sameVersion(want, got string) bool {
	trim := func(v string) string {
		v = strings.ToLower(v)
		for strings.HasSuffix(v, ".0") {
			v = strings.TrimSuffix(v, ".0")
		}
		return v
	}
	if !strings.Contains(want, "+") {
		got, _, _ = strings.Cut(got, "+")
	}
	return trim(want) == trim(got)
}

// EnvironmentYML returns the Python environment in the form of a file environment.yml, from which
// conda and mamba make it.
func (f *Fingerprint) EnvironmentYML(name string) (string, error) {
	version := f.Get(Python, "version")
	if version == "" {
		return "", errors.New("the environment has no Python: name its interpreter by --python")
	}
	channels := f.channels()
	if len(channels) == 0 {
		channels = []string{"conda-forge"}
	}
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\nchannels:\n", yamlWord(name))
	for _, c := range channels {
		fmt.Fprintf(&b, "  - %s\n", yamlWord(c))
	}
	b.WriteString("  - nodefaults\ndependencies:\n")
	var conda []string
	for _, name := range f.Keys(Packages) {
		if spec := condaSpec(name, f.Get(Packages, name)); spec != "" {
			conda = append(conda, spec)
		}
	}
	if !slices.ContainsFunc(conda, func(spec string) bool { return strings.HasPrefix(spec, "python=") }) {
		conda = append([]string{"python=" + version}, conda...)
	}
	requirements, err := f.Requirements()
	if err != nil {
		return "", err
	}
	lines := strings.Fields(strings.ReplaceAll(requirements, " @ ", "@"))
	lines = slices.DeleteFunc(lines, func(line string) bool { return strings.HasPrefix(line, "pip==") })
	if len(lines) > 0 && !slices.ContainsFunc(conda, func(spec string) bool { return strings.HasPrefix(spec, "pip=") }) {
		pip := "pip"
		if v, _, _ := strings.Cut(f.Get(Packages, "pip"), " "); v != "" {
			pip += "=" + v
		}
		conda = append(conda, pip)
	}
	for _, spec := range conda {
		fmt.Fprintf(&b, "  - %s\n", yamlWord(spec))
	}
	if len(lines) > 0 {
		b.WriteString("  - pip:\n")
		for _, line := range lines {
			fmt.Fprintf(&b, "      - %s\n", yamlWord(strings.Replace(line, "@", " @ ", 1)))
		}
	}
	return b.String(), nil
}

var plainYAML = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_./+=-]*$`)

// yamlWord writes a word of YAML: in quotes where it could be read as something else.
func yamlWord(word string) string {
	switch strings.ToLower(word) {
	case "y", "n", "yes", "no", "on", "off", "true", "false", "null", "":
	default:
		if plainYAML.MatchString(word) {
			return word
		}
	}
	return "'" + strings.ReplaceAll(word, "'", "''") + "'"
}

// CondaExplicit returns the packages that conda has installed below a prefix as an explicit list:
// an address a line, with the checksum that conda knows.
func CondaExplicit(prefix string) (string, error) {
	found, _ := filepath.Glob(filepath.Join(prefix, "conda-meta", "*.json"))
	var lines []string
	platform := ""
	for _, path := range found {
		var p struct {
			URL    string `json:"url"`
			MD5    string `json:"md5"`
			Subdir string `json:"subdir"`
		}
		if err := json.Unmarshal([]byte(readFile(path)), &p); err != nil {
			return "", fmt.Errorf("%s: %w", path, err)
		}
		line := channelToken.ReplaceAllString(maskURL(p.URL), "/")
		if p.MD5 != "" {
			line += "#" + p.MD5
		}
		if p.URL == "" || !condaURL.MatchString(line) {
			return "", fmt.Errorf("%s does not say where the package came from: %.80q", path, p.URL)
		}
		if p.Subdir != "noarch" && p.Subdir != "" {
			platform = p.Subdir
		}
		lines = append(lines, line)
	}
	if len(lines) == 0 {
		return "", fmt.Errorf("conda has installed nothing below %q: name the interpreter of an environment of conda by --python", prefix)
	}
	text := "@EXPLICIT\n" + strings.Join(lines, "\n") + "\n"
	if platform != "" {
		text = "# platform: " + platform + "\n" + text
	}
	return text, nil
}
