// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/cohort-ml/cohort/checkpoint/safetensors"
	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/internal/transport"
	"github.com/cohort-ml/cohort/rpc"
	"github.com/cohort-ml/cohort/rpc/ps"
	"github.com/cohort-ml/cohort/tensor"
)

const psTables = `
[[table]]
name = "user"
width = 3
optimizer = {kind = "sgd", lr = 1.0}
init = {kind = "uniform", scale = 0.5, seed = 1}

[[table]]
name = "item"
width = 2
rows = 10
`

// psJobs are the servers of a test.
type psJobs struct {
	t     *testing.T
	jobs  []*job
	addrs []string
	args  func(i int) []string
}

func (p *psJobs) start(i int) {
	p.t.Helper()
	p.jobs[i] = start(p.t, nil, p.args(i)...)
	p.jobs[i].await(p.t, "address", func(out string) bool { return strings.HasSuffix(out, "\n") })
	out, _ := p.jobs[i].output()
	words := strings.Fields(out)
	p.addrs[i] = words[len(words)-1]
}

func startServers(t *testing.T, n int, args func(i int) []string) *psJobs {
	t.Helper()
	p := &psJobs{t: t, jobs: make([]*job, n), addrs: make([]string, n), args: args}
	for i := range n {
		p.start(i)
	}
	return p
}

// at is the flag with all addresses.
func (p *psJobs) at() string { return "--at=" + strings.Join(p.addrs, ",") }

// push pushes the gradient of user rows as a process of the job.
func (p *psJobs) push(keys ...int64) {
	p.t.Helper()
	agent, err := rpc.Init(p.t.Context(), "trainer")
	if err != nil {
		p.t.Fatal(err)
	}
	defer agent.Close()
	c, err := ps.Dial(p.t.Context(), agent, ps.At(p.addrs...))
	if err != nil {
		p.t.Fatal(err)
	}
	defer c.Close()
	g := make([]float32, 3*len(keys))
	for i := range g {
		g[i] = float32(i) + 0.25
	}
	if err := c.Push(p.t.Context(), ps.Gradient{Table: "user", Keys: keys, Grads: tensor.FromFloat32(g, len(keys), 3)}); err != nil {
		p.t.Fatal(err)
	}
}

// mustPrint runs a command that must succeed.
func mustPrint(t *testing.T, args ...string) string {
	t.Helper()
	code, out, errs := cohort(args...)
	if code != 0 {
		t.Fatalf("cohort %s: code %d\n%s", strings.Join(args, " "), code, errs)
	}
	return out
}

// TestPS: servers keep what was pushed through a kill, their rows can be read and exported, and other
// servers go on with them.
func TestPS(t *testing.T) {
	t.Setenv(string(envvar.Token), transport.NewToken().Text())
	dir := t.TempDir()
	file := filepath.Join(dir, "tables.toml")
	if err := os.WriteFile(file, []byte(psTables), 0o666); err != nil {
		t.Fatal(err)
	}
	servers := startServers(t, 2, func(i int) []string {
		return []string{"ps", "serve", "--index", fmt.Sprint(i), "--servers", "2", "--tables", file, "--dir", filepath.Join(dir, fmt.Sprint(i))}
	})
	query := []string{"ps", "query", "--table", "user", servers.at(), "--", "-7", "1", "2", "3", "4", "5", "999"}
	before := mustPrint(t, query...)
	servers.push(-7, 1, 2, 3)
	if out := mustPrint(t, "ps", "checkpoint", servers.at()); out != "2 snapshots written\n" {
		t.Errorf("checkpoint says %q", out)
	}
	servers.push(2, 3, 4, 5)
	rows := mustPrint(t, query...)
	if rows == before || strings.Count(rows, "\n") != 7 || !strings.HasPrefix(rows, "-7: ") {
		t.Errorf("rows before:\n%s\nafter:\n%s", before, rows)
	}
	for i, j := range servers.jobs {
		j.cmd.Process.Kill()
		j.wait(t)
		servers.start(i)
		again := servers.jobs[i]
		again.await(t, "word of what came back", func(string) bool { return strings.Contains(again.stderr.String(), "1 entries of its log again") })
	}
	query[4] = servers.at()
	if again := mustPrint(t, query...); again != rows {
		t.Errorf("rows after the kill:\n%s\nwant:\n%s", again, rows)
	}
	status := mustPrint(t, "ps", "status", servers.at())
	if !strings.Contains(status, "1 of 2") || !strings.Contains(status, "\nuser   6") {
		t.Errorf("status:\n%s", status)
	}
	if out := mustPrint(t, "ps", "status", "--json", servers.at()); strings.Count(out, "\n") != 2 {
		t.Errorf("status --json:\n%s", out)
	}
	readHTTP(t, servers)
	mustPrint(t, "ps", "checkpoint", servers.at())
	export(t, dir, rows)

	wider := filepath.Join(dir, "wider")
	if code, _, errs := cohort("ps", "load", filepath.Join(dir, "0"), filepath.Join(dir, "1"), wider); code == 0 || !strings.Contains(errs, "end that server first") {
		t.Errorf("load beside the servers: code %d, %s", code, errs)
	}
	for _, j := range servers.jobs {
		j.cmd.Process.Kill()
		j.wait(t)
	}
	out := mustPrint(t, "ps", "load", "--servers", "3", filepath.Join(dir, "1"), filepath.Join(dir, "0"), wider)
	if strings.Count(out, "\n") != 3 {
		t.Errorf("load says %q", out)
	}
	for i := range servers.jobs {
		servers.start(i)
	}
	three := startServers(t, 3, func(i int) []string {
		return []string{"ps", "serve", "--index", fmt.Sprint(i), "--servers", "3", "--tables", file, "--dir", filepath.Join(wider, fmt.Sprint(i))}
	})
	query[4] = three.at()
	if again := mustPrint(t, query...); again != rows {
		t.Errorf("rows on three servers:\n%s\nwant:\n%s", again, rows)
	}
	three.push(1, 2, 3, 4) // their logs begin anew, and rows of old logs take pushes
	if again := mustPrint(t, query...); again == rows {
		t.Error("a push to the new servers has changed nothing")
	}
	for _, c := range []struct{ args, want string }{
		{"ps query --table usr 1 " + three.at(), "did you mean user?"},
		{"ps query --table user 1.5 " + three.at(), `"1.5" is no key`},
		{"ps query --table item 12 " + three.at(), "item"},
		{"ps query --table user 1", "say where the servers are"},
		{"ps status --at=" + three.addrs[1] + "," + three.addrs[0] + "," + three.addrs[2], "server 1"},
		{"ps serve --index 2 --servers 3 --dir " + filepath.Join(wider, "2"), "another process has the directory"},
		{"ps serve --index 1 --servers 2 --dir " + filepath.Join(dir, "0"), "another process has the directory"},
		{"ps serve --index 3 --servers 3", "servers count from 0"},
		{"ps serve --snapshot-every 1s", "needs --dir"},
		{"ps serve --consistency bounded:2", "needs --workers"},
		{"ps export --table user " + filepath.Join(dir, "0") + " x.csv", "give the directories of all"},
		{"ps export --table user " + filepath.Join(dir, "0") + " x.txt", ".safetensors, .npy or .csv"},
		{"ps load " + filepath.Join(dir, "0") + " " + wider, "is there already"},
	} {
		if code, _, errs := cohort(strings.Fields(c.args)...); code == 0 || !strings.Contains(errs, c.want) {
			t.Errorf("cohort %s: code %d, %q, want %q", c.args, code, errs, c.want)
		}
	}
	for _, j := range append(servers.jobs, three.jobs...) {
		j.cmd.Process.Signal(os.Interrupt)
		if code := j.wait(t); code != 0 {
			_, errs := j.output()
			t.Errorf("a server ends with code %d: %s", code, errs)
		}
	}
	if code, _, errs := cohort("ps", "serve", "--index", "1", "--servers", "2", "--dir", filepath.Join(dir, "0")); code == 0 || !strings.Contains(errs, "server 0 of 2") {
		t.Errorf("a directory of another server: code %d, %q", code, errs)
	}
}

// readHTTP reads rows by HTTP.
func readHTTP(t *testing.T, servers *psJobs) {
	t.Helper()
	j := start(t, nil, "ps", "query", "--http", "127.0.0.1:0", servers.at())
	j.await(t, "address", func(out string) bool { return strings.HasSuffix(out, "\n") })
	out, _ := j.output()
	url := out[strings.Index(out, "http://") : len(out)-1]
	get := func(url string) (int, string) {
		r, err := http.Get(url)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(b)
	}
	if code, text := get(url); code != 200 || !strings.Contains(text, `"name":"user"`) {
		t.Errorf("%d %s", code, text)
	}
	code, text := get(url + "/user?keys=-7,1")
	if code != 200 || !strings.HasPrefix(text, `[{"key":-7,"row":[`) {
		t.Errorf("%d %s", code, text)
	}
	if code, text := get(url + "/usr?keys=1"); code != 404 || !strings.Contains(text, "did you mean") {
		t.Errorf("%d %s", code, text)
	}
	if code, text := get(url + "/user?keys=x"); code != 400 {
		t.Errorf("%d %s", code, text)
	}
	http.DefaultClient.CloseIdleConnections()
	j.cmd.Process.Signal(os.Interrupt)
	if code := j.wait(t); code != 0 {
		t.Errorf("it ends with code %d", code)
	}
}

// export writes the table in each format, and compares it with the rows that query printed.
func export(t *testing.T, dir, printed string) {
	t.Helper()
	var keys []int64
	var values []float32
	for line := range strings.Lines(printed) {
		key, row, _ := strings.Cut(strings.TrimSpace(line), ": ")
		k, _ := strconv.ParseInt(key, 10, 64)
		if k == 999 {
			continue // it has no row
		}
		keys = append(keys, k)
		for x := range strings.FieldsSeq(row) {
			v, _ := strconv.ParseFloat(x, 32)
			values = append(values, float32(v))
		}
	}
	for _, ext := range []string{"csv", "npy", "safetensors"} {
		out := filepath.Join(dir, "user."+ext)
		mustPrint(t, "ps", "export", "--table", "user", filepath.Join(dir, "0"), filepath.Join(dir, "1"), out)
	}
	text, err := os.ReadFile(filepath.Join(dir, "user.csv"))
	if err != nil {
		t.Fatal(err)
	}
	var csv strings.Builder
	csv.WriteString("key,v0,v1,v2\n")
	var wantKeys, wantRows []byte
	for i, k := range keys {
		fmt.Fprintf(&csv, "%d,%g,%g,%g\n", k, values[3*i], values[3*i+1], values[3*i+2])
		wantKeys = binary.LittleEndian.AppendUint64(wantKeys, uint64(k))
	}
	for _, x := range values {
		wantRows = binary.LittleEndian.AppendUint32(wantRows, math.Float32bits(x))
	}
	if string(text) != csv.String() {
		t.Errorf("CSV:\n%s\nwant:\n%s", text, csv.String())
	}
	f, err := safetensors.Open(filepath.Join(dir, "user.safetensors"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	gotKeys, gotRows := make([]byte, len(wantKeys)), make([]byte, len(wantRows))
	if err := f.ReadTensor("user.keys", gotKeys); err != nil {
		t.Fatal(err)
	}
	if err := f.ReadTensor("user.rows", gotRows); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(gotKeys, wantKeys) || !bytes.Equal(gotRows, wantRows) {
		t.Error("the safetensors differ")
	}
	for name, want := range map[string][]byte{"user.npy": wantRows, "user.keys.npy": wantKeys} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		header := 10 + int(binary.LittleEndian.Uint16(b[8:]))
		if header%64 != 0 || !bytes.Equal(b[header:], want) || !slices.Equal(b[:8], []byte("\x93NUMPY\x01\x00")) || b[header-1] != '\n' {
			t.Errorf("%s: %q", name, b)
		}
	}
}
