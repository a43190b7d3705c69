// SPDX-License-Identifier: Apache-2.0

package ssh

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// lostCode is the exit code of ssh if the connection has failed.
const lostCode = 255

// sendPatience is how long a host may take to accept a message.
const sendPatience = time.Minute

// sshOptions are given to ssh. It never asks anything, and notices a dead network within a
// minute. What a configuration forwards is of no use here.
func sshOptions() []string {
	return []string{
		"-T", "-x", "-a", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20",
		"-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4", "-o", "ClearAllForwardings=yes",
	}
}

// sshCommand returns the command that runs a command of the shell on a host. It has a process
// group of its own: Ctrl-C reaches this process alone, which tells the hosts.
func (o *Options) sshCommand(host, command string) *exec.Cmd {
	args := append(append(o.SSH[1:len(o.SSH):len(o.SSH)], sshOptions()...), "--", host, command)
	cmd := exec.Command(o.SSH[0], args...)
	cmd.Env = envvar.WithoutToken() // a configuration may send variables
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = 5 * time.Second
	return cmd
}

// Connection is one host that has greeted.
type Connection struct {
	Host  Host
	Hello Hello

	cmd   *exec.Cmd
	in    *os.File // to the agent
	out   *bufio.Reader
	pipe  *os.File // that out reads
	errs  *errLines
	ended chan struct{}
	code  int // of ssh, after ended

	sending sync.Mutex
}

// dial starts ssh and waits for the greeting.
func dial(ctx context.Context, o *Options, host Host, command string) (*Connection, error) {
	c := &Connection{Host: host, ended: make(chan struct{}), errs: &errLines{host: host.Name, w: o.Stderr, held: true}}
	c.cmd = o.sshCommand(host.Name, command)
	read, write, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	outRead, outWrite, err := os.Pipe()
	if err != nil {
		read.Close()
		write.Close()
		return nil, err
	}
	c.in, c.pipe, c.out = write, outRead, bufio.NewReaderSize(outRead, 64<<10)
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = read, outWrite, c.errs
	err = c.cmd.Start()
	read.Close()
	outWrite.Close()
	if err != nil {
		write.Close()
		outRead.Close()
		return nil, fmt.Errorf("start %s: %w: install the OpenSSH client, or name its path with --ssh", o.SSH[0], err)
	}
	go func() {
		_ = c.cmd.Wait()
		c.code = c.cmd.ProcessState.ExitCode()
		close(c.ended)
	}()
	greeted := make(chan error, 1)
	go func() { greeted <- c.greeting() }()
	select {
	case err = <-greeted:
	case <-ctx.Done():
		err = fmt.Errorf("no answer: %w: is the host slow? --ssh-timeout gives it longer", context.Cause(ctx))
	}
	if err == nil {
		return c, nil
	}
	c.kill()
	<-c.ended
	outRead.Close()
	if errors.Is(err, io.EOF) {
		err = explain(host.Name, o.Cohort, c.errs.text())
	}
	return nil, err
}

// greeting reads until the agent has said who it is.
func (c *Connection) greeting() error {
	for noise := 0; noise < maxNoise; {
		line, err := readLine(c.out, maxNoise)
		if err != nil {
			return err
		}
		if rest, ok := bytes.CutPrefix(line, []byte(greeting)); ok {
			if len(rest) > maxHello {
				return fmt.Errorf("its greeting has %d bytes", len(rest))
			}
			c.Hello, err = parseHello(string(rest))
			return err
		}
		noise += len(line) + 1
	}
	return fmt.Errorf("the login scripts there print more than %d KiB to commands that come over ssh: let them print for terminals alone", maxNoise>>10)
}

// send gives the agent a message.
func (c *Connection) send(message any) error {
	c.sending.Lock()
	defer c.sending.Unlock()
	return c.write(message)
}

// write gives the agent a message. The caller holds sending.
func (c *Connection) write(message any) error {
	line, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if err := c.in.SetWriteDeadline(time.Now().Add(sendPatience)); err != nil {
		return err
	}
	_, err = c.in.Write(append(line, '\n'))
	return err
}

// follow sends the order and copies the output of its command, until that has ended. The caller
// holds sending, so that nothing is sent before the order.
func (c *Connection) follow(o Order, out *lineWriter) Result {
	o.End = "cohort-end " + rand.Text()
	sent := c.write(&o)
	c.sending.Unlock()
	code, told := c.relay(out, o.End)
	<-c.ended
	c.errs.flush()
	if !told {
		return c.result(sent)
	}
	return Result{Host: c.Host.Name, Code: code}
}

// relay copies the output of the command, line by line, until it ends. The last line, which
// begins with a mark, has its exit code; told is false if there is none.
func (c *Connection) relay(w *lineWriter, mark string) (code int, told bool) {
	defer c.pipe.Close()
	for begins := true; ; {
		line, err := c.out.ReadSlice('\n')
		if text, ok := bytes.CutPrefix(line, []byte(mark+" ")); ok && begins && err == nil {
			n, bad := strconv.Atoi(string(bytes.TrimSpace(text)))
			code, told = n, bad == nil
		} else if len(line) > 0 {
			w.write(line)
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return code, told
		}
		begins = err == nil
	}
}

// result says how the command of a host has ended that has not told its exit code, from the end
// of ssh.
func (c *Connection) result(sent error) Result {
	r := Result{Host: c.Host.Name, Code: c.code}
	switch {
	case sent != nil || c.code == lostCode || c.code < 0:
		r.Lost = fmt.Errorf("the connection has ended, or the agent there was killed (%s)", c.errs.lastLine())
	case c.code == 0:
		r.Lost = errors.New("the agent there has ended and has not said how its command ended")
	}
	return r
}

// close lets the agent end: its input ends.
func (c *Connection) close() { c.in.Close() }

// kill ends ssh.
func (c *Connection) kill() {
	c.in.Close()
	_ = syscall.Kill(-c.cmd.Process.Pid, syscall.SIGKILL)
}

// lineWriter writes lines of several hosts, one after the other.
type lineWriter struct {
	mu sync.Mutex
	w  io.Writer
}

func (l *lineWriter) write(b []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, _ = l.w.Write(b) // without a reader nothing is left to do
}

// errLines gets the standard error of one ssh. Until the agent has greeted it keeps the lines.
// After that it passes them on. Lines that no rank has written get the name of the host.
type errLines struct {
	host string
	w    io.Writer

	mu   sync.Mutex
	held bool
	kept []byte // what is held, or the last lines
	part []byte // of a line
}

const keptErrors = 16 << 10

func (e *errLines) Write(b []byte) (int, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.kept = append(e.kept, b...); len(e.kept) > keptErrors {
		e.kept = append([]byte(nil), e.kept[len(e.kept)-keptErrors:]...)
	}
	if e.held {
		return len(b), nil
	}
	e.part = append(e.part, b...)
	for {
		i := bytes.IndexByte(e.part, '\n')
		if i < 0 && len(e.part) < 64<<10 {
			return len(b), nil
		}
		if i < 0 {
			i = len(e.part) - 1
		}
		e.pass(e.part[:i+1])
		e.part = append(e.part[:0], e.part[i+1:]...)
	}
}

// pass writes a line.
func (e *errLines) pass(line []byte) {
	if !bytes.HasPrefix(line, []byte("[")) && len(bytes.TrimSpace(line)) > 0 {
		line = append([]byte("["+e.host+"] "), line...)
	}
	_, _ = e.w.Write(line)
}

// release lets lines through from now on.
func (e *errLines) release() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.held, e.kept = false, nil
}

// flush writes what has no line feed.
func (e *errLines) flush() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if len(e.part) > 0 {
		e.pass(append(e.part, '\n'))
		e.part = nil
	}
}

func (e *errLines) text() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return string(e.kept)
}

// lastLine is the last line that is not empty.
func (e *errLines) lastLine() string {
	last := "the network, or the host, is gone"
	for line := range strings.SplitSeq(e.text(), "\n") {
		if line = strings.TrimSpace(plain(line)); line != "" {
			last = clip(line)
		}
	}
	return last
}
