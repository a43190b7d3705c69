// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	mrand "math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
)

// attackTime makes TestJobUnderAttack attack for so long and print a table:
//
//	go test ./cmd/cohort -run TestJobUnderAttack -attack 1m -v
var attackTime = flag.Duration("attack", 0, "how long to attack each job of TestJobUnderAttack (default: a second)")

// endpoint is where a process listens.
type endpoint struct{ network, address string }

// listeners returns where processes listen, by process.
func listeners(t *testing.T, pids []int) map[int][]endpoint {
	t.Helper()
	found := map[int][]endpoint{}
	for _, pid := range pids {
		dir := fmt.Sprintf("/proc/%d/", pid)
		inodes := map[string]bool{}
		fds, _ := filepath.Glob(dir + "fd/*")
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil && strings.HasPrefix(to, "socket:[") {
				inodes[strings.Trim(to, "socket:[]")] = true
			}
		}
		for _, table := range []string{"tcp", "tcp6", "unix"} {
			text, err := os.ReadFile(dir + "net/" + table)
			if err != nil {
				continue
			}
			for line := range strings.Lines(string(text)) {
				f := strings.Fields(line)
				switch {
				case table == "unix" && len(f) == 8 && f[3] == "00010000" && inodes[f[6]]:
					found[pid] = append(found[pid], endpoint{"unix", f[7]})
				case table != "unix" && len(f) > 9 && f[3] == "0A" && inodes[f[9]]:
					host, port, _ := strings.Cut(f[1], ":")
					n, err := strconv.ParseUint(port, 16, 16)
					if err != nil {
						t.Fatal(err)
					}
					if host != "0100007F" && strings.Trim(host, "0") != "" {
						t.Fatalf("process %d listens on %s, which is not for this test", pid, f[1])
					}
					found[pid] = append(found[pid], endpoint{"tcp", net.JoinHostPort("127.0.0.1", strconv.FormatUint(n, 10))})
				}
			}
		}
	}
	return found
}

// script is what a stranger says: pieces, with a pause before each but the
// first, and then either the end of its side or waiting for the other's.
type script struct {
	pieces [][]byte
	pause  time.Duration
	shut   bool
}

// attack is a number of strangers at one endpoint.
type attack struct {
	at       endpoint
	answered *atomic.Int64 // bytes that strangers got
	tried    *atomic.Int64 // connections that were made
}

// say plays a script on a new connection and waits for its end.
func (a *attack) say(ctx context.Context, s script) {
	nc, err := net.Dial(a.at.network, a.at.address)
	if err != nil {
		return // the queue is full, or the job has ended
	}
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { nc.Close() })()
	a.tried.Add(1)
	for i, piece := range s.pieces {
		if i > 0 && !rest(ctx, s.pause) {
			return
		}
		if _, err := nc.Write(piece); err != nil {
			break
		}
	}
	if half, ok := nc.(interface{ CloseWrite() error }); ok && s.shut {
		_ = half.CloseWrite()
	}
	n, _ := io.Copy(io.Discard, nc)
	a.answered.Add(n)
}

// rest waits, and says whether ctx goes on.
func rest(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}

// capture returns what a dialling member of a job says: all of a handshake
// with an endpoint, through a relay, or its first words alone where there is none.
func capture(t *testing.T, at *endpoint, proto string, token transport.Token, through bool) []byte {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	said := make(chan []byte, 1)
	go func() {
		near, err := ln.Accept()
		if err != nil {
			said <- nil
			return
		}
		defer near.Close()
		var heard []byte
		buf := make([]byte, 64<<10)
		if at == nil {
			n, _ := near.Read(buf)
			said <- buf[:n]
			cancel() // nobody will answer
			return
		}
		far, err := net.Dial(at.network, at.address)
		if err != nil {
			said <- nil
			return
		}
		defer far.Close()
		go func() {
			_, _ = io.Copy(near, far)
			near.Close()
		}()
		for {
			n, err := near.Read(buf)
			heard = append(heard, buf[:n]...)
			if _, werr := far.Write(buf[:n]); err != nil || werr != nil {
				break
			}
		}
		said <- heard
	}()
	c, err := transport.Dial(ctx, ln.Addr().String(), proto, token, transport.WithTLS(through))
	if at != nil && err != nil {
		t.Fatalf("a member cannot connect to %v: %v", *at, err)
	}
	if err == nil {
		c.Close()
	}
	heard := <-said
	if len(heard) == 0 {
		t.Fatal("nothing was captured")
	}
	return heard
}

// randomBytes are as many, behind a beginning.
func randomBytes(n int, begin ...byte) []byte {
	b := make([]byte, n)
	_, _ = rand.Read(b)
	return append(begin, b...)
}

// firstWords are what was captured of members and of others.
type firstWords struct{ fresh, freshTLS, wrong, wrongTLS []byte }

func captureWords(t *testing.T, token transport.Token) firstWords {
	t.Helper()
	stranger := transport.NewToken()
	return firstWords{
		capture(t, nil, "store", token, false), capture(t, nil, "store", token, true),
		capture(t, nil, "store", stranger, false), capture(t, nil, "store", stranger, true),
	}
}

// scripts are what strangers say to an endpoint of a job whose token is given.
func scripts(t *testing.T, at endpoint, proto string, token transport.Token, w firstWords) map[string]func() script {
	t.Helper()
	say := func(pieces ...[]byte) func() script { return func() script { return script{pieces: pieces} } }
	replay, replayTLS := capture(t, &at, proto, token, false), capture(t, &at, proto, token, true)
	fresh, freshTLS, magic := w.fresh, w.freshTLS, w.fresh[:8]
	return map[string]func() script{
		"scan":               func() script { return script{shut: true} },
		"random bytes":       func() script { return script{pieces: [][]byte{randomBytes(mrand.IntN(64 << 10))}, shut: true} },
		"random TLS":         func() script { return script{pieces: [][]byte{randomBytes(mrand.IntN(8<<10), 22, 3, 1)}, shut: true} },
		"random handshake":   func() script { return script{pieces: [][]byte{append(slices.Clone(magic), randomBytes(300, 1)...)}} },
		"wrong token":        say(w.wrong),
		"wrong token, TLS":   say(w.wrongTLS),
		"replay":             say(replay),
		"replay by halves":   func() script { return script{pieces: [][]byte{replay[:80], replay[80:]}, pause: time.Millisecond} },
		"replay, TLS":        say(replayTLS),
		"truncated":          func() script { return script{pieces: [][]byte{fresh[:mrand.IntN(len(fresh))]}, shut: true} },
		"truncated TLS":      func() script { return script{pieces: [][]byte{freshTLS[:mrand.IntN(len(freshTLS))]}, shut: true} },
		"oversized record":   say([]byte{22, 3, 3, 0xff, 0xff}, randomBytes(70<<10)),
		"oversized hello":    say([]byte{22, 3, 1, 0x40, 0, 1, 0xff, 0xff, 0xff}, randomBytes(16<<10)),
		"oversized frame":    say(append(slices.Clone(magic), 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff), randomBytes(1<<20)),
		"http":               say([]byte("GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")),
		"PyTorch's store":    say([]byte{9, 0x5a, 0x41, 0xb1, 0x3c}, make([]byte, 100)),
		"one byte and quiet": say(magic[:1]),
	}
}

// loris holds sockets open, each with a handshake that comes byte by byte.
func (a *attack) loris(ctx context.Context, n int) (wait func()) {
	var wg sync.WaitGroup
	slow := script{pause: 200 * time.Millisecond}
	for i := range 80 {
		slow.pieces = append(slow.pieces, []byte{"\xc0HORT\r\n\x01"[i%8]})
	}
	for range n {
		wg.Go(func() {
			for ctx.Err() == nil {
				a.say(ctx, slow)
				rest(ctx, 100*time.Millisecond)
			}
		})
	}
	return wg.Wait
}

// run plays scripts in turn until ctx ends, so that strangers come as often as
// pause says.
func (a *attack) run(ctx context.Context, all map[string]func() script, pause time.Duration) {
	names := slices.Sorted(maps.Keys(all))
	var wg sync.WaitGroup
	for i := 0; rest(ctx, pause); i++ {
		s := all[names[i%len(names)]]()
		wg.Go(func() {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			a.say(short, s)
		})
	}
	wg.Wait()
}

// members are those of the job's own token who break the protocol behind the
// handshake: frames cut short, too long, of no kind, at any protocol.
func (a *attack) members(ctx context.Context, token transport.Token) {
	address := a.at.address
	if a.at.network == "unix" {
		address = "unix:" + address
	}
	for i := 0; rest(ctx, 20*time.Millisecond); i++ {
		short, cancel := context.WithTimeout(ctx, time.Second)
		c, err := transport.Dial(short, address, []string{"store", "coll"}[i/2%2], token, transport.WithTLS(i%2 == 1))
		cancel()
		if err != nil {
			continue // this endpoint does not offer it
		}
		_ = c.SetDeadline(time.Now().Add(100 * time.Millisecond))
		switch i % 3 {
		case 0:
			_, _ = c.Write([]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f})
		case 1:
			_, _ = c.Write([]byte{100, 0, 0, 0, 0, 0, 0, 1, 2, 3})
		case 2:
			_, _ = c.Write(randomBytes(4096))
		}
		_, _ = io.Copy(io.Discard, c)
		c.Close()
	}
}

// TestJobUnderAttack: whatever strangers say to the ports of a running job, they
// get nothing, the job's losses are bit for bit those of a job at rest, and its
// steps take their time. The ranks say that somebody was there, in few lines.
func TestJobUnderAttack(t *testing.T) {
	for _, kind := range []string{"tcp", "auto"} {
		t.Run(kind, func(t *testing.T) { attackJob(t, kind) })
	}
	t.Run("flood", testFloods)
}

func attackJob(t *testing.T, kind string) {
	data, env := writeText(t), []string{envvar.Transport.Assign(kind)}
	numSteps := 2400 // they write twice what a pipe holds
	if *attackTime > 0 {
		began := time.Now()
		j := start(t, env, append(tiny(data, filepath.Join(t.TempDir(), "trial")), "--steps", "2000", "--json")...)
		j.wait(t)
		numSteps = int(2000 * float64(*attackTime) / float64(time.Since(began)))
	}
	args := func(out string) []string {
		n := strconv.Itoa(numSteps)
		return append(tiny(data, filepath.Join(t.TempDir(), out)), "--steps", n, "--save-every", n, "--eval-every", n, "--json")
	}
	began := time.Now()
	j := start(t, env, args("rest")...)
	if code := j.waitFor(t, *attackTime*3+time.Minute); code != 0 {
		_, stderr := j.output()
		t.Fatalf("code %d:\n%s", code, stderr)
	}
	atRest := time.Since(began)
	stdout, _ := j.output()
	want := steps(t, stdout)

	token := transport.NewToken()
	said := captureWords(t, token)
	began = time.Now()
	j, goOn := startHeld(t, append(env, envvar.Token.Assign(token.Text())), args("attacked")...)
	j.await(t, "a step", func(stdout string) bool { return strings.Contains(stdout, `"loss"`) })
	var answered, tried atomic.Int64
	var attacks []*attack
	var lines []map[string]func() script
	environs := j.environs()
	var ranks []int
	for pid, env := range environs {
		if valueOf(env, envvar.Rank) != "" {
			ranks = append(ranks, pid)
		}
	}
	all := listeners(t, slices.Collect(maps.Keys(environs)))
	for pid, at := range all {
		if !slices.Contains(ranks, pid) {
			t.Errorf("process %d, which is no rank, listens at %v", pid, at)
		}
		masterPort := valueOf(environs[pid], envvar.MasterPort)
		for _, e := range at {
			proto := "store"
			if e.network == "unix" || !strings.HasSuffix(e.address, ":"+masterPort) {
				proto = "coll"
			}
			attacks = append(attacks, &attack{at: e, answered: &answered, tried: &tried})
			lines = append(lines, scripts(t, e, proto, token, said))
		}
	}
	if want := map[string]int{"tcp": 2, "auto": 3}[kind]; len(attacks) != want {
		t.Fatalf("the job listens at %v, want %d places", all, want)
	}

	goOn()

	// In turns, so that what else this machine does falls on both alike.
	// At rest and attacked: steps a second, by turns, and the ranks' processor
	// time and steps of all turns together, for the system counts in hundredths of a second.
	var rates [2][]float64
	var costs, made [2]float64
	const numTurns = 6
	numDone := func() int { stdout, _ := j.output(); return strings.Count(stdout, `"loss"`) }
	// Short ones, for the machine may have had other work while the job was at rest:
	// of each kind there is to be one before this one's end.
	turn := 100 * time.Millisecond
	if *attackTime > 0 {
		turn = max(turn, atRest/(4*numTurns))
	}
	for i := 0; !j.isOver(); i++ {
		ctx, cancel := context.WithTimeout(t.Context(), turn)
		var wg sync.WaitGroup
		for k, a := range attacks {
			switch i % 3 {
			case 1:
				wg.Go(a.loris(ctx, 1000/len(attacks)))
				wg.Go(func() { a.run(ctx, lines[k], 2*time.Millisecond) })
			case 2: // not timed: a port that knows members makes haste
				wg.Go(func() { a.members(ctx, token) })
			}
		}
		before, spent, now := numDone(), cpuTime(ranks), time.Now()
		select {
		case <-ctx.Done():
		case <-j.ended:
		}
		if done := numDone(); done < numSteps && done > before && i%3 < 2 {
			rates[i%3] = append(rates[i%3], float64(done-before)/time.Since(now).Seconds())
			costs[i%3] += float64(cpuTime(ranks)-spent) / 1e6
			made[i%3] += float64(done - before)
		}
		cancel()
		wg.Wait()
	}
	took := time.Since(began)
	code := j.waitFor(t, time.Minute)
	stdout, stderr := j.output()
	if code != 0 {
		t.Fatalf("code %d:\n%s", code, stderr)
	}
	if got := steps(t, stdout); !maps.Equal(got, want) || len(got) != numSteps {
		t.Errorf("the losses of %d steps under attack are not those of %d at rest", len(got), len(want))
	}
	if n := answered.Load(); n != 0 {
		t.Errorf("strangers got %d bytes", n)
	}
	const reasons = 13 // of a refusal, each with a line at once, one a minute and one at the end
	if n := strings.Count(stderr, "turned away"); n < len(attacks) || n > len(attacks)*reasons*(2+int(took/time.Minute)) || strings.Contains(stderr, token.Text()) {
		t.Errorf("standard error:\n%s", stderr)
	}
	for i := range 2 {
		slices.Sort(rates[i])
		costs[i] /= max(1, made[i])
	}
	if len(rates[0]) == 0 || len(rates[1]) == 0 || tried.Load() < 100 {
		t.Fatalf("%d turns at rest, %d under attack, %d connections: too few", len(rates[0]), len(rates[1]), tried.Load())
	}
	middle := func(of []float64) float64 { return of[len(of)/2] }
	t.Logf("%s: %d listeners, %d steps in %v (alone %v)", kind, len(attacks), numSteps, took.Round(time.Millisecond), atRest.Round(time.Millisecond))
	t.Logf("%s: steps a second: %.0f at rest, %.0f under attack (%.3f)", kind, middle(rates[0]), middle(rates[1]), middle(rates[1])/middle(rates[0]))
	t.Logf("%s: processor time of a step: %.3f ms at rest, %.3f under attack (%.3f)", kind, costs[0], costs[1], costs[1]/costs[0])
	t.Logf("%s: strangers made %d connections and got %d bytes", kind, tried.Load(), answered.Load())
	// The strangers compute on the same cores, which makes steps longer, so what they cost the ranks is
	// given by connection.
	each := max(0, costs[1]-costs[0]) * made[1] / float64(tried.Load()) * 1000
	t.Logf("%s: a stranger's connection takes %.0f µs of the ranks' processor time", kind, each)
	if *attackTime > 0 && each > 200 {
		t.Errorf("a stranger's connection takes %.0f µs of the ranks' processor time", each)
	}
}

// cpuTime returns the processor time that processes have had, in nanoseconds.
func cpuTime(pids []int) (total int64) {
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			continue // ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if f := strings.Fields(rest); len(f) > 12 {
			for _, ticks := range f[11:13] { // utime and stime, in hundredths of a second
				n, _ := strconv.ParseInt(ticks, 10, 64)
				total += n * 10_000_000
			}
		}
	}
	return total
}

// valueOf returns a variable of an environment, "" where it is not there.
func valueOf(env []string, name envvar.Var) string {
	for _, kv := range env {
		if value, ok := strings.CutPrefix(kv, name.Assign("")); ok {
			return value
		}
	}
	return ""
}

// isOver says whether the job has ended.
func (j *job) isOver() bool {
	select {
	case <-j.ended:
		return true
	default:
		return false
	}
}

// waitFor is wait with another limit.
func (j *job) waitFor(t *testing.T, limit time.Duration) int {
	t.Helper()
	select {
	case <-j.ended:
		return j.cmd.ProcessState.ExitCode()
	case <-time.After(limit):
		_, stderr := j.output()
		t.Fatalf("%v does not end; standard error:\n%s", j.cmd.Args[1:], stderr)
		return 0
	}
}

// TestNoSecretIsPublic: what a running job shows to all users of the machine,
// and to who reads its output, has no part of the token.
func TestNoSecretIsPublic(t *testing.T) {
	token := transport.NewToken()
	j := start(t, []string{envvar.Token.Assign(token.Text())}, "run", "--nproc-per-node", "2", "sh", "-c", "env; echo ready; exec sleep 30")
	j.await(t, "output of both ranks", func(stdout string) bool { return strings.Count(stdout, "ready") == 2 })
	pids := j.processes(-1)
	if len(pids) < 3 {
		t.Fatalf("processes %v", pids)
	}
	for _, pid := range pids {
		line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(line), token.Text()[:8]) {
			t.Errorf("process %d has the token in its arguments: %q", pid, line)
		}
	}
	_ = j.cmd.Process.Signal(syscall.SIGTERM)
	j.wait(t)
	stdout, stderr := j.output()
	raw, err := hex.DecodeString(token.Text())
	if err = errors.Join(err); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{token.Text(), strings.ToUpper(token.Text()), string(raw)} {
		if strings.Contains(stdout+stderr, text) {
			t.Errorf("the token was printed:\n%s%s", stdout, stderr)
		}
	}
}
