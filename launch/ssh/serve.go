// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// orderPatience is how long an agent waits for its order: copies to the other hosts may take
// long. If the connection ends before, the agent ends.
const orderPatience = time.Hour

// Serve is the end on the other host. It greets, waits for its order, and runs it by run,
// which gets the arguments of a cohort command and its output. Serve returns the exit code.
//
// The command gets signals that come as messages as if they came from the system. If the
// input ends, or nothing comes for [Silence], the command gets SIGTERM.
func Serve(in io.Reader, stdout, stderr io.Writer, version string, run func(args []string, stdout, stderr io.Writer) int) int {
	// A write to a connection that is gone is an error, and does not end this process.
	pipe := make(chan os.Signal, 1)
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	hello, port := greet(version)
	defer port.Close()
	line, _ := json.Marshal(hello) // a struct of texts
	if _, err := fmt.Fprintf(stdout, "%s%s\n", greeting, line); err != nil {
		return 1
	}
	lines := make(chan []byte)
	done := make(chan struct{})
	defer close(done)
	go func() {
		defer close(lines)
		r := bufio.NewReaderSize(in, 64<<10)
		for limit := maxOrder; ; limit = maxHello {
			line, err := readLine(r, limit)
			if err != nil {
				return
			}
			select {
			case lines <- line:
			case <-done:
				return
			}
		}
	}()
	var first []byte
	select {
	case first = <-lines:
	case <-time.After(orderPatience):
		fmt.Fprintf(stderr, "cohort: nothing to run has come from the other end of ssh for %v\n", orderPatience)
	}
	if first == nil { // another host cannot take part
		return 0
	}
	var o Order
	if err := json.Unmarshal(first, &o); err != nil {
		fmt.Fprintf(stderr, "cohort: the order from the other end of ssh cannot be read: %v\n", err)
		return 2
	}
	code, out := 2, &lasting{w: stdout}
	if err := o.prepare(); err != nil {
		fmt.Fprintf(stderr, "cohort: %v\n", err)
	} else {
		port.Close()
		go obey(lines, stderr, done)
		code = run(o.Args, out, &lasting{w: stderr})
	}
	out.end(o.End, code)
	return code
}

// greet says who this host is. The free port is held until the order has come.
func greet(version string) (Hello, *transport.HeldPort) {
	h := Hello{Protocol: protocol, Version: version, Platform: runtime.GOOS + "/" + runtime.GOARCH, Addr: envvar.SSHServerAddr()}
	h.Host, _ = os.Hostname()
	h.Machine = machine(h.Host)
	h.Dir, _ = os.UserHomeDir()
	self, err := os.Executable()
	if err == nil {
		h.Sum, err = SumOf(self)
	}
	if err != nil {
		h.Err = err.Error()
	}
	port, err := transport.HoldPort("0.0.0.0")
	if err == nil {
		h.Port = port.Port()
	}
	return h, port
}

// machine is the same for all names of this machine: that of the boot and of the network.
func machine(host string) string {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return host
	}
	network, _ := os.Readlink("/proc/self/ns/net")
	return strings.TrimSpace(string(boot)) + " " + network
}

// SumOf returns the SHA-256 of a file in hexadecimal digits.
func SumOf(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

// prepare makes this process what the order asks for.
func (o *Order) prepare() error {
	if len(o.Args) == 0 {
		return errors.New("the order from the other end of ssh has no command")
	}
	if o.Dir != "" {
		dir := o.Dir
		if rest, ok := strings.CutPrefix(dir, "~/"); ok || dir == "~" {
			home, err := os.UserHomeDir()
			if err != nil {
				return err
			}
			dir = filepath.Join(home, strings.TrimPrefix(rest, "~"))
		}
		if err := os.Chdir(dir); err != nil {
			return fmt.Errorf("directory %s, in which the job is started, is not here: %w: name one that all hosts have with --remote-dir DIR, or make it", o.Dir, errors.Unwrap(err))
		}
	}
	if o.Program != "" {
		if sum, err := SumOf(o.Program); err != nil {
			return fmt.Errorf("the copy of the program: %w", err)
		} else if sum != o.Sum {
			return fmt.Errorf("the copy of the program, %s, is damaged: remove it and start again", o.Program)
		}
	}
	return envvar.Become(o.Env, o.Token)
}

// obey gives the command of this process the signals that come as messages.
func obey(lines <-chan []byte, stderr io.Writer, done <-chan struct{}) {
	end := func(why string) {
		fmt.Fprintf(&lasting{w: stderr}, "cohort: %s: this host's part of the job ends\n", why)
		_ = syscall.Kill(os.Getpid(), syscall.SIGTERM)
	}
	silent := time.NewTimer(Silence)
	defer silent.Stop()
	for {
		select {
		case <-done:
			return
		case <-silent.C:
			end(fmt.Sprintf("nothing has come from the host that started the job for %v", Silence))
			return
		case line, ok := <-lines:
			if !ok {
				select {
				case <-done: // this end has ended by itself
				default:
					end("the connection to the host that started the job has ended")
				}
				return
			}
			silent.Reset(Silence)
			var c control
			if err := json.Unmarshal(line, &c); err != nil || c.Signal == "" {
				continue
			}
			if s, err := signalOf(c.Signal); err == nil {
				_ = syscall.Kill(os.Getpid(), s)
			}
		}
	}
}

// lasting is an output that takes everything, also when its reader has gone: the ranks save
// what they have.
type lasting struct {
	mu   sync.Mutex
	w    io.Writer
	gone bool
	part bool // of a line was written last
}

func (l *lasting) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.gone && len(b) > 0 {
		if _, err := l.w.Write(b); err != nil {
			l.gone = true
		}
		l.part = b[len(b)-1] != '\n'
	}
	return len(b), nil
}

// end writes the line that says how the command has ended.
func (l *lasting) end(mark string, code int) {
	if mark == "" {
		return
	}
	text := fmt.Sprintf("%s %d\n", mark, code)
	if l.part {
		text = "\n" + text
	}
	_, _ = l.Write([]byte(text))
}

// readLine returns a line without its line feed. A longer line than the limit is an error.
func readLine(r *bufio.Reader, limit int) ([]byte, error) {
	var line []byte
	for {
		part, err := r.ReadSlice('\n')
		if len(line)+len(part) > limit {
			return nil, fmt.Errorf("a line of more than %d bytes", limit)
		}
		line = append(line, part...)
		switch err {
		case nil:
			return line[:len(line)-1], nil
		case bufio.ErrBufferFull:
		default:
			return line, err
		}
	}
}
