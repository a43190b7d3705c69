// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"strings"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// MaxHosts is the largest number of hosts of a list.
const MaxHosts = 4096

// maxHostFile is the largest size of a host file.
const maxHostFile = 4 << 20

// Host is an entry of a list of hosts.
type Host struct {
	// Name is what ssh gets: host or user@host, also a name of ssh's configuration.
	Name string
	// Slots is the number of ranks there; 0: the list does not say.
	Slots int
}

// hostName is what a host may be called. A name that begins with a dash would be an option
// of ssh.
var hostName = regexp.MustCompile(`^([A-Za-z0-9_][A-Za-z0-9_.+-]*@)?([A-Za-z0-9_][A-Za-z0-9_.-]*|[0-9A-Fa-f:.]+(%[A-Za-z0-9_.-]+)?)$`)

// equals is the sign between a key and its value. Open MPI lets spaces be around it.
var equals = regexp.MustCompile(`\s*=\s*`)

// list is a list of hosts under construction.
type list struct {
	hosts []Host
	from  map[string]string // where a host was named, for an error about a second time
}

// add adds the hosts of one entry: names, which may have brackets, with a number of slots.
func (l *list) add(text string, slots int, where string) error {
	names, err := Expand(text)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	for _, name := range names {
		if !hostName.MatchString(name) || len(name) > 255 {
			return fmt.Errorf("%s: %q is no name of a host: give host, user@host or an IP address, with the number of ranks behind a colon, as in a,b:4", where, name)
		}
		key := strings.ToLower(name[strings.Index(name, "@")+1:])
		if first, ok := l.from[key]; ok {
			return fmt.Errorf("%s: host %s is already there (%s): name each host once, with all its ranks, as in %s:4", where, name, first, name)
		}
		l.from[key] = where
		if l.hosts = append(l.hosts, Host{Name: name, Slots: slots}); len(l.hosts) > MaxHosts {
			return fmt.Errorf("%s: more than %d hosts", where, MaxHosts)
		}
	}
	return nil
}

// splitSlots reads host:N. Colons of an IPv6 address are no number of slots, unless the
// address is in brackets.
func splitSlots(text string) (name string, slots int, err error) {
	at := strings.Index(text, "@") + 1
	user, host := text[:at], text[at:]
	if strings.HasPrefix(host, "[") {
		if inside, rest, ok := strings.Cut(host[1:], "]"); ok && net.ParseIP(strings.Split(inside, "%")[0]) != nil {
			if rest == "" {
				return user + inside, 0, nil
			}
			if !strings.HasPrefix(rest, ":") {
				return "", 0, fmt.Errorf("%q: an address in brackets is followed by a colon and the number of ranks", text)
			}
			slots, err = parseSlots(rest[1:], text)
			return user + inside, slots, err
		}
	}
	if net.ParseIP(strings.Split(host, "%")[0]) != nil {
		return text, 0, nil
	}
	name, number, ok := cutLast(text, ":")
	if !ok {
		return text, 0, nil
	}
	slots, err = parseSlots(number, text)
	return name, slots, err
}

func parseSlots(number, text string) (int, error) {
	n, err := envvar.ParseInt(number)
	if err != nil || n < 1 || n > 1<<20 {
		return 0, fmt.Errorf("%q: %q is no number of ranks: give 1 or more, as in a:4, or in a file \"a slots=4\" (a port of ssh belongs into ~/.ssh/config, or into --ssh \"ssh -p PORT\")", text, number)
	}
	return n, nil
}

// cutLast cuts a text at the last separator.
func cutLast(text, sep string) (before, after string, ok bool) {
	i := strings.LastIndex(text, sep)
	if i < 0 {
		return text, "", false
	}
	return text[:i], text[i+len(sep):], true
}

// ParseHosts reads a list such as a,b:4,node[01-16]:8.
func ParseHosts(text string) ([]Host, error) {
	l := list{from: map[string]string{}}
	for i, entry := range splitList(text) {
		entry = strings.TrimSpace(entry)
		if entry == "" {
			return nil, fmt.Errorf("%q: entry %d is empty: give hosts with commas between them, as in a,b:4", text, i+1)
		}
		name, slots, err := splitSlots(entry)
		if err != nil {
			return nil, err
		}
		if err := l.add(name, slots, "entry "+entry); err != nil {
			return nil, err
		}
	}
	return l.hosts, nil
}

// ReadHostFile reads a file with a host a line: host, host:N (MPICH), or host slots=N
// (Open MPI, DeepSpeed). What follows a # is a remark. A host that is there twice is an error: the
// files of PBS and LSF name a host once for each slot, and the error says what makes a list of them.
func ReadHostFile(path string) ([]Host, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	l := list{from: map[string]string{}}
	in := bufio.NewScanner(io.LimitReader(f, maxHostFile+1))
	read := 0
	for n := 1; in.Scan(); n++ {
		if read += len(in.Bytes()) + 1; read > maxHostFile {
			return nil, fmt.Errorf("%s is larger than %d MiB: that is no list of hosts", path, maxHostFile>>20)
		}
		text, _, _ := strings.Cut(in.Text(), "#")
		if n == 1 {
			text = strings.TrimPrefix(text, "\ufeff")
		}
		words := strings.Fields(equals.ReplaceAllString(text, "="))
		if len(words) == 0 {
			continue
		}
		where := fmt.Sprintf("%s line %d", path, n)
		name, slots, err := splitSlots(words[0])
		if err != nil {
			return nil, fmt.Errorf("%s: %w", where, err)
		}
		for _, word := range words[1:] {
			key, value, _ := strings.Cut(word, "=")
			switch key {
			case "slots":
				if slots, err = parseSlots(value, word); err != nil {
					return nil, fmt.Errorf("%s: %w", where, err)
				}
			case "max_slots", "max-slots": // of Open MPI: ranks beyond slots, which we never start
			default:
				return nil, fmt.Errorf("%s: %q is unknown: give a host a line, as in \"node01 slots=4\" or \"node01:4\"", where, word)
			}
		}
		if err := l.add(name, slots, where); err != nil {
			if len(words) == 1 && slots == 0 {
				err = fmt.Errorf("%w; if a line stands for a rank: sort %s | uniq -c | awk '{print $2 \":\" $1}' >hosts", err, Quote(path))
			}
			return nil, err
		}
	}
	if err := in.Err(); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(l.hosts) == 0 {
		return nil, fmt.Errorf("%s names no host: give a host a line, as in \"node01 slots=4\"", path)
	}
	return l.hosts, nil
}

// splitList splits at commas outside of brackets.
func splitList(text string) (out []string) {
	depth, from := 0, 0
	for i, c := range text {
		switch {
		case c == '[':
			depth++
		case c == ']':
			depth--
		case c == ',' && depth <= 0:
			out = append(out, text[from:i])
			from = i + 1
		}
	}
	return append(out, text[from:])
}

// Expand returns the names of a list as Slurm writes it: node[01-03,7],login. Numbers keep
// their leading zeros. A name may have several pairs of brackets.
func Expand(text string) ([]string, error) {
	var out []string
	for _, entry := range splitList(text) {
		names, err := expandOne(strings.TrimSpace(entry))
		if err != nil {
			return nil, err
		}
		if out = append(out, names...); len(out) > MaxHosts {
			return nil, fmt.Errorf("%q names more than %d hosts", clip(text), MaxHosts)
		}
	}
	return out, nil
}

func expandOne(text string) ([]string, error) {
	open := strings.Index(text, "[")
	if open < 0 {
		if text == "" || strings.Contains(text, "]") {
			return nil, fmt.Errorf("%q is no list of hosts: give names such as node[01-04],login", clip(text))
		}
		return []string{text}, nil
	}
	end := strings.Index(text[open:], "]")
	if end < 0 {
		return nil, fmt.Errorf("%q has a bracket that does not end: write node[01-04]", clip(text))
	}
	inside, rest := text[open+1:open+end], text[open+end+1:]
	tails := []string{""}
	if rest != "" {
		var err error
		if tails, err = expandOne(rest); err != nil {
			return nil, err
		}
	}
	var out []string
	for part := range strings.SplitSeq(inside, ",") {
		lo, hi, isRange := strings.Cut(part, "-")
		if !isRange {
			hi = lo
		}
		first, err1 := digits(lo)
		last, err2 := digits(hi)
		if err1 != nil || err2 != nil || last < first {
			return nil, fmt.Errorf("%q: %q is no range of numbers: write node[01-04,7]", clip(text), clip(part))
		}
		if last-first >= MaxHosts || len(out)+(last-first+1)*len(tails) > MaxHosts {
			return nil, fmt.Errorf("%q names more than %d hosts", clip(text), MaxHosts)
		}
		for n := first; n <= last; n++ {
			for _, tail := range tails {
				out = append(out, fmt.Sprintf("%s%0*d%s", text[:open], len(lo), n, tail))
			}
		}
	}
	return out, nil
}

// digits reads a number of at most 9 digits.
func digits(text string) (n int, err error) {
	if text == "" || len(text) > 9 {
		return 0, fmt.Errorf("no number")
	}
	for _, c := range []byte(text) {
		if c < '0' || c > '9' {
			return 0, fmt.Errorf("no number")
		}
		n = 10*n + int(c-'0')
	}
	return n, nil
}

// clip shortens a text for an error.
func clip(text string) string {
	if len(text) <= 100 {
		return text
	}
	return text[:100] + "…"
}
