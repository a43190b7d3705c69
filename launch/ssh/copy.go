// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// keptDays is how long a host keeps copies that nobody uses.
const keptDays = 14

// copyPatience is how long the copies to one host may take.
const copyPatience = 10 * time.Minute

// localFile is a file that is copied.
type localFile struct {
	path, name, sum string
	size            int64
}

// localFiles are this program and Options.Files. The name of a copy says its content.
func (o *Options) localFiles() (files []localFile, err error) {
	if !o.Copy {
		return nil, nil
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	for i, path := range append([]string{self}, o.Files...) {
		info, err := os.Stat(path)
		if err != nil {
			return nil, err
		}
		sum, err := SumOf(path)
		if err != nil {
			return nil, err
		}
		base := "cohort"
		if i > 0 {
			base = strings.Map(func(r rune) rune {
				if r == '_' || r >= '0' && r <= '9' || r >= 'A' && r <= 'Z' || r >= 'a' && r <= 'z' {
					return r
				}
				return '-'
			}, filepath.Base(path))
			base = "program-" + base[:min(len(base), 40)]
		}
		files = append(files, localFile{path: path, name: base + "-" + sum, sum: sum, size: info.Size()})
	}
	return files, nil
}

// The scripts go through the login shell of the user, whatever it is, to sh: they have no
// single quotes, exclamation marks and line feeds.
const (
	copyMark   = "cohort-copy "
	copyDir    = `d="${XDG_CACHE_HOME:-$HOME/.cache}/cohort/bin"; `
	lookScript = copyDir + `mkdir -p "$d" && chmod 700 "$d" && echo cohort-copy system $(uname -s) $(uname -m) && for f in %s; do if [ -f "$d/$f" ]; then touch "$d/$f"; echo cohort-copy size $f $(wc -c <"$d/$f"); fi; done; echo cohort-copy dir "$d"`
	saveScript = copyDir + `t="$d/.%[1]s.%[4]s"; cat >"$t" && [ $(wc -c <"$t") -eq %[2]d ] && chmod 700 "$t" && mv "$t" "$d/%[1]s" && find "$d" -type f -mtime +%[3]d -exec rm -f {} + && exit 0; rm -f "$t"; exit 1`
)

// unameOf are the names of systems and machines by uname.
var unameOf = map[string]string{"Linux": "linux", "Darwin": "darwin", "x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}

var safeWord = regexp.MustCompile(`^[A-Za-z0-9_./+:@%=-]+$`)

// Quote writes a word for a shell. A path that begins with ~/ is in the home directory.
func Quote(word string) string {
	if rest, ok := strings.CutPrefix(word, "~/"); ok {
		return `"$HOME"/` + Quote(rest)
	}
	if safeWord.MatchString(word) {
		return word
	}
	return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
}

// copyTo copies the files that a host does not have, and returns their paths there.
func (f *Fleet) copyTo(ctx context.Context, h Host, files []localFile) (paths []string, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, copyPatience, fmt.Errorf("the copy has taken more than %v", copyPatience))
	defer cancel()
	var names []string
	for _, file := range files {
		names = append(names, file.name)
	}
	printed, err := f.shell(ctx, h, fmt.Sprintf(lookScript, strings.Join(names, " ")), nil)
	if err != nil {
		return nil, err
	}
	dir, there := "", map[string]int64{}
	for line := range strings.SplitSeq(printed, "\n") {
		rest, ok := strings.CutPrefix(strings.TrimSuffix(line, "\r"), copyMark)
		if !ok {
			continue
		}
		key, value, _ := strings.Cut(rest, " ")
		words := strings.Fields(value)
		switch {
		case key == "system" && len(words) == 2:
			if got, want := unameOf[words[0]]+"/"+unameOf[words[1]], runtime.GOOS+"/"+runtime.GOARCH; got != want {
				return nil, fmt.Errorf("it is %s (%s), and this program is for %s: install Cohort for that system there, and leave --copy out", got, plain(value), want)
			}
		case key == "size" && len(words) == 2:
			there[words[0]], _ = strconv.ParseInt(words[1], 10, 64)
		case key == "dir":
			dir = value
		}
	}
	if dir == "" {
		return nil, fmt.Errorf("its shell does not do what sh does: install Cohort there, and leave --copy out")
	}
	for _, file := range files {
		if size, ok := there[file.name]; !ok || size != file.size {
			if err := f.save(ctx, h, file); err != nil {
				return nil, err
			}
		}
		paths = append(paths, dir+"/"+file.name)
	}
	return paths, nil
}

// save copies one file.
func (f *Fleet) save(ctx context.Context, h Host, file localFile) error {
	r, err := os.Open(file.path)
	if err != nil {
		return err
	}
	defer r.Close()
	if _, err = f.shell(ctx, h, fmt.Sprintf(saveScript, file.name, file.size, keptDays, rand.Text()), r); err != nil {
		return fmt.Errorf("copy %s there (%d MB): %w", filepath.Base(file.path), file.size>>20, err)
	}
	return nil
}

// shell runs a script of sh on a host, and returns what it printed.
func (f *Fleet) shell(ctx context.Context, h Host, script string, in io.Reader) (string, error) {
	var out bytes.Buffer
	errs := &errLines{host: h.Name, held: true}
	cmd := f.opts.sshCommand(h.Name, "exec sh -c '"+script+"'")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = in, &limitedBuffer{b: &out}, errs
	if err := cmd.Start(); err != nil {
		return "", fmt.Errorf("start %s: %w: install the OpenSSH client, or name its path with --ssh", f.opts.SSH[0], err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if err != nil {
			return "", explain(h.Name, "shell", errs.text())
		}
		return out.String(), nil
	case <-ctx.Done():
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		<-ended
		return "", context.Cause(ctx)
	}
}

// limitedBuffer keeps the first part of what is written.
type limitedBuffer struct{ b *bytes.Buffer }

func (l *limitedBuffer) Write(b []byte) (int, error) {
	if room := maxNoise - l.b.Len(); room > 0 {
		l.b.Write(b[:min(room, len(b))])
	}
	return len(b), nil
}
