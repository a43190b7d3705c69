// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
)

// sshHosts are hosts with an sshd of their own each, and a configuration of ssh that knows
// them as a, b, … Nothing of this machine's own ssh is used.
type sshHosts struct {
	dir    string // of keys, configuration and logs
	config string
	cache  string // the cache directory on the hosts
	log    string
}

// command is the flag --ssh that reaches the hosts.
func (s *sshHosts) command() string { return "ssh -F " + s.config }

// sshTools skips the test where OpenSSH is not there.
func sshTools(t *testing.T) (sshd string) {
	t.Helper()
	for _, name := range []string{"ssh", "ssh-keygen"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("there is no %s (Debian: openssh-client)", name)
		}
	}
	for _, path := range []string{"/usr/sbin/sshd", "/usr/local/sbin/sshd", "/usr/bin/sshd"} {
		if _, err := os.Stat(path); err == nil {
			return path
		}
	}
	t.Skip("there is no sshd (Debian: openssh-server)")
	return ""
}

// newSSHHosts starts an sshd for each name at an address; in starts a process where the host
// is.
func newSSHHosts(t *testing.T, names, addrs []string, in func(i int, start func())) *sshHosts {
	t.Helper()
	sshd := sshTools(t)
	dir := t.TempDir()
	s := &sshHosts{dir: dir, config: filepath.Join(dir, "ssh_config"), cache: filepath.Join(dir, "cache"), log: filepath.Join(dir, "sshd.log")}
	for _, key := range []string{"host", "user", "stranger"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", filepath.Join(dir, key)).CombinedOutput(); err != nil {
			t.Fatalf("ssh-keygen: %v: %s", err, out)
		}
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	if os.Getuid() == 0 { // sshd wants it
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			t.Skipf("sshd cannot run here: %v", err)
		}
	}
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	public, err := os.ReadFile(filepath.Join(dir, "user.pub"))
	if err != nil {
		t.Fatal(err)
	}
	hostKey, err := os.ReadFile(filepath.Join(dir, "host.pub"))
	if err != nil {
		t.Fatal(err)
	}
	write("authorized_keys", string(public))
	var known, config strings.Builder
	for i, name := range names {
		host, port, _ := net.SplitHostPort(addrs[i])
		fmt.Fprintf(&known, "[%s]:%s %s", host, port, hostKey)
		fmt.Fprintf(&config, "Host %s\n  HostName %s\n  Port %s\n", name, host, port)
		write("sshd_config_"+name, fmt.Sprintf(`ListenAddress %s
HostKey %s/host
AuthorizedKeysFile %s/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
SetEnv %s=1 GORACE=atexit_sleep_ms=0 XDG_CACHE_HOME=%s TMPDIR=%s
`, addrs[i], dir, dir, cliMain, s.cache, dir))
	}
	fmt.Fprintf(&config, "Host *\n  User %s\n  IdentityFile %s/user\n  IdentitiesOnly yes\n  UserKnownHostsFile %s/known_hosts\n  GlobalKnownHostsFile none\n  SendEnv *\n", me.Username, dir, dir)
	write("known_hosts", known.String())
	write("ssh_config", config.String())
	for i, name := range names {
		cmd := exec.Command(sshd, "-D", "-f", filepath.Join(dir, "sshd_config_"+name), "-E", s.log)
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
		in(i, func() {
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
		})
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		in(i, func() {
			for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
				c, err := net.Dial("tcp", addrs[i])
				if err == nil {
					c.Close()
					return
				}
				if time.Now().After(deadline) {
					log, _ := os.ReadFile(s.log)
					t.Skipf("sshd does not listen at %s: %s", addrs[i], log)
				}
			}
		})
	}
	return s
}

// oneSSHHost is a host of the name a on this machine.
func oneSSHHost(t *testing.T) *sshHosts {
	return newSSHHosts(t, []string{"a", "again"}, []string{freeEndpoint(t), freeEndpoint(t)}, func(_ int, start func()) { start() })
}

// TestRunOverSSH: a job on a host that a real sshd serves: its ranks, its variables, its exit
// code, and nothing of the token where others could see it.
func TestRunOverSSH(t *testing.T) {
	s := oneSSHHost(t)
	work := t.TempDir()
	base := []string{"run", "--hosts", "a:2", "--ssh", s.command(), "--remote-dir", work}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	there := append(base, "--remote-cohort", self)
	token := strings.Repeat("5a", 32)
	j := start(t, []string{envvar.Token.Assign(token), "OMP_X=1 2", "SECRET_KEY=hidden", "GIVEN=y"}, append(there, "--export", "GIVEN", "--export", "MADE=z",
		"/bin/sh", "-c", `echo "rank $RANK of $WORLD_SIZE in $(pwd): $OMP_X,$SECRET_KEY,$GIVEN,$MADE,${#COHORT_TOKEN}"; tr "\0" " " </proc/$PPID/cmdline; tr "\0" " " </proc/$PPID/environ; echo; if [ $RANK = 0 ]; then echo up; exec sleep 600; fi; until [ -e go ]; do sleep 0.02; done; exit 7`)...)
	j.await(t, "rank 0", func(stdout string) bool { return strings.Contains(stdout, "[rank0] up") })
	clients := 0
	for pid, env := range processesBelow(t, j.cmd.Process.Pid) {
		line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if strings.HasPrefix(string(line), "ssh\x00") {
			clients++
		}
		if strings.Contains(string(line)+env, token) {
			t.Errorf("process %d has the token where others could see it: %q", pid, line)
		}
	}
	if clients != 1 {
		t.Errorf("%d processes of ssh, want 1", clients)
	}
	if err := os.WriteFile(filepath.Join(work, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code := j.wait(t)
	stdout, stderr := j.output()
	if code != 1 || !strings.Contains(stderr, "rank 1 exited with code 7") || !strings.Contains(stderr, "1 host by ssh (--hosts a:2): a:2") || !strings.Contains(stderr, "host a ended with code 1") {
		t.Errorf("code %d\n%s", code, stderr)
	}
	for _, want := range []string{"[rank0] rank 0 of 2 in " + work + ": 1 2,,y,z,64\n", "[rank1] rank 1 of 2", "host-agent"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, token) || strings.Contains(stdout, "****") {
		t.Errorf("the token can be seen:\n%s", stdout)
	}

	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"the same machine", []string{"run", "--hosts", "a,again", "--ssh", s.command(), "--remote-cohort", self, "true"}, []string{"host again: it is the same machine as a", "name each machine once"}},
		{"no such command", []string{"run", "--hosts", "a", "--ssh", s.command(), "--remote-cohort", "/no/cohort", "true"}, []string{"host a: there is no /no/cohort", "--copy"}},
		{"no key", []string{"run", "--hosts", "a", "--ssh", s.command() + " -o IdentityFile=" + s.dir + "/stranger -i " + s.dir + "/stranger -F " + s.dir + "/strange_config", "true"}, []string{"host a: the host takes none of your keys", "ssh-copy-id a"}},
		{"unknown key of the host", []string{"run", "--hosts", "a", "--ssh", s.command() + " -o UserKnownHostsFile=/dev/null", "true"}, []string{"host a: ssh does not know the host's key", "run `ssh a` once"}},
		{"nobody there", []string{"run", "--hosts", "a", "--ssh", s.command() + " -p 1", "true"}, []string{"host a: no ssh server answers", "Connection refused"}},
		{"no directory", append(there[:len(there):len(there)], "--remote-dir", "/no/dir", "true"), []string{"directory /no/dir", "--remote-dir", "host a ended with code 2"}},
		{"no program", append(there[:len(there):len(there)], "no-such-program"), []string{"[a] cohort: ", "not in PATH", "host a ended with code 2"}},
		{"another version", []string{"run", "--hosts", "a", "--ssh", s.command(), "--remote-cohort", oldAgent(t), "true"}, []string{"host a: it has another version, cohort v0.0.1", "--copy"}},
		{"no agent", []string{"run", "--hosts", "a", "--ssh", s.command(), "--remote-cohort", "/bin/true", "true"}, []string{"host a: ssh has ended before Cohort began there"}},
		{"an address beside c10d", []string{"run", "--hosts", "a,b", "--rdzv-backend", "c10d", "--master-addr", "10.0.0.1", "true"}, []string{"--master-addr 10.0.0.1 and --rdzv-backend c10d contradict each other", "--rdzv-endpoint"}},
		{"quotes in the command of ssh", []string{"run", "--hosts", "a", "--ssh", "ssh -i 'my key'", "true"}, []string{"--ssh ssh -i 'my key'", "~/.ssh/config"}},
		{"a name that is none", []string{"run", "--hosts", "a", "--ssh", "ssh", "--hosts", "-oProxyCommand=x", "true"}, []string{"is no name of a host"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.name == "no key" {
				text, err := os.ReadFile(s.config)
				if err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(s.dir+"/strange_config", []byte(strings.ReplaceAll(string(text), s.dir+"/user", s.dir+"/stranger")), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			j := start(t, nil, c.args...)
			code := j.wait(t)
			stdout, stderr := j.output()
			if code != 2 || stdout != "" {
				t.Errorf("code %d, want 2; %q", code, stdout)
			}
			for _, want := range c.want {
				if !strings.Contains(stderr, want) {
					t.Errorf("no %q in %q", want, stderr)
				}
			}
		})
	}
}

// processesBelow returns the environments of the children of a process.
func processesBelow(t *testing.T, parent int) map[int]string {
	t.Helper()
	found := map[int]string{}
	files, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			continue // ended
		}
		words := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if words[1] == fmt.Sprint(parent) {
			env, _ := os.ReadFile(filepath.Join(filepath.Dir(f), "environ"))
			var pid int
			_, _ = fmt.Sscan(filepath.Base(filepath.Dir(f)), &pid)
			found[pid] = string(env)
		}
	}
	return found
}

// oldAgent is a program that greets as an old version would.
func oldAgent(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "old")
	script := "#!/bin/sh\necho hello from the profile\necho 'cohort-host-agent {\"protocol\":1,\"version\":\"cohort v0.0.1\"}'\nexec cat\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestRemoteWork does what docs/remote.md says: with its configuration, sshd refuses root and
// passwords, takes the key of a user, and carries a page that listens on loopback.
func TestRemoteWork(t *testing.T) {
	sshd := sshTools(t)
	if os.Getuid() != 0 {
		t.Skip("sshd serves other users only as root")
	}
	if _, err := user.Lookup("nobody"); err != nil {
		t.Skip(err)
	}
	s := oneSSHHost(t)
	page, err := os.ReadFile("../../docs/remote.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(page), "<!-- sshd_config -->\n```text\n")
	text, _, ok := strings.Cut(text, "```\n")
	if !ok {
		t.Fatal("docs/remote.md has no sshd_config")
	}
	at := freeEndpoint(t)
	host, port, _ := net.SplitHostPort(at)
	config := filepath.Join(s.dir, "sshd_config_remote")
	if err := os.WriteFile(config, []byte(fmt.Sprintf("ListenAddress %s\nHostKey %s/host\nAuthorizedKeysFile %s/authorized_keys\nPidFile none\nStrictModes no\nUsePAM no\n%s", at, s.dir, s.dir, text)), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(sshd, "-t", "-f", config).CombinedOutput(); err != nil {
		t.Fatalf("sshd -t: %v: %s", err, out)
	}
	// The user has to read the keys.
	for path := s.dir; path != filepath.Clean(os.TempDir()) && path != "/"; path = filepath.Dir(path) {
		if err := os.Chmod(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(os.TempDir(), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(s.dir, "authorized_keys"), 0o644); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(sshd, "-D", "-f", config, "-E", s.log)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setsid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	listening(t, at)
	ssh := func(who string, more ...string) *exec.Cmd {
		args := append([]string{"-F", s.config, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "ExitOnForwardFailure=yes", "-p", port}, more...)
		return exec.Command("ssh", append(args, who+"@"+host)...)
	}
	if out, err := ssh("root", "-N").CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied (publickey)") {
		t.Errorf("root, with the right key: %v: %s", err, out)
	}
	if out, err := ssh("nobody", "-N", "-o", "PubkeyAuthentication=no").CombinedOutput(); err == nil || !strings.Contains(string(out), "Permission denied (publickey)") {
		t.Errorf("without a key: %v: %s", err, out)
	}

	carry := func(t *testing.T, to, path, want string) {
		here := freeEndpoint(t)
		_, port, _ := net.SplitHostPort(here)
		tunnel := ssh("nobody", "-N", "-L", "127.0.0.1:"+port+":"+to)
		tunnel.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		var said strings.Builder
		tunnel.Stderr = &said
		if err := tunnel.Start(); err != nil {
			t.Fatal(err)
		}
		defer func() {
			_ = tunnel.Process.Kill()
			_ = tunnel.Wait()
			if t.Failed() {
				log, _ := os.ReadFile(s.log)
				t.Logf("%s\n%s", said.String(), log)
			}
		}()
		listening(t, here)
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
			answer, err := http.Get("http://" + here + path)
			if err == nil {
				body, _ := io.ReadAll(answer.Body)
				answer.Body.Close()
				if !strings.Contains(string(body), want) {
					t.Errorf("the page is %q, want %q in it", body, want)
				}
				return
			}
			if time.Now().After(deadline) {
				t.Error(err)
				return
			}
		}
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "the page of a job") }))
	defer server.Close()
	carry(t, strings.TrimPrefix(server.URL, "http://"), "/", "the page of a job")
	http.DefaultClient.CloseIdleConnections()

	t.Run("Jupyter", func(t *testing.T) {
		for python := range slices.Values(append([]string{"python3"}, filepath.SplitList(os.Getenv("COHORT_TEST_PYTHONS"))...)) {
			if exec.Command(python, "-c", "import jupyter_server").Run() != nil {
				continue
			}
			at := freeEndpoint(t)
			_, port, _ := net.SplitHostPort(at)
			const token = "a-token-of-jupyter"
			j := exec.Command(python, "-m", "jupyter_server", "--no-browser", "--allow-root", "--ip", "127.0.0.1", "--port", port, "--ServerApp.port_retries=0", "--IdentityProvider.token="+token)
			j.Dir, j.Env = t.TempDir(), append(os.Environ(), "HOME="+t.TempDir())
			j.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
			if err := j.Start(); err != nil {
				t.Fatal(err)
			}
			defer func() {
				_ = j.Process.Kill()
				_ = j.Wait()
			}()
			listening(t, at)
			carry(t, at, "/api/status?token="+token, `"kernels": 0`)
			carry(t, at, "/api/status", "Forbidden")
			http.DefaultClient.CloseIdleConnections()
			return
		}
		t.Skip("no Python of COHORT_TEST_PYTHONS has jupyter_server")
	})
}
