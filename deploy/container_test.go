// SPDX-License-Identifier: Apache-2.0

package deploy

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"
	batch "k8s.io/api/batch/v1"
)

// An image is what the last stage of container/Dockerfile makes, without a registry: the root of
// a file system, and how a process starts in it.
type image struct {
	root, user, dir string
	env, entrypoint []string
}

var lastStage = regexp.MustCompile(`(?m)^(USER|ENV|WORKDIR|ENTRYPOINT) (.*)$`)

// newImage builds the command as the Dockerfile says and puts it where the Dockerfile puts it.
func newImage(dir string) (*image, error) {
	text, err := os.ReadFile("container/Dockerfile")
	if err != nil {
		return nil, err
	}
	build := regexp.MustCompile(`(?m)^RUN (CGO_ENABLED=0 go build .*) -o /image(\S+) (\S+)$`).FindSubmatch(text)
	_, last, ok := bytes.Cut(text, []byte("\nFROM scratch\n"))
	if build == nil || !ok {
		return nil, fmt.Errorf("container/Dockerfile: there is no build, or no stage from scratch")
	}
	im := &image{root: dir}
	for _, m := range lastStage.FindAllSubmatch(last, -1) {
		switch value := string(m[2]); string(m[1]) {
		case "USER":
			im.user, _, _ = strings.Cut(value, ":")
		case "WORKDIR":
			im.dir = value
		case "ENV":
			im.env = strings.Fields(value)
		case "ENTRYPOINT":
			err = json.Unmarshal(m[2], &im.entrypoint)
		}
	}
	if err != nil {
		return nil, fmt.Errorf("container/Dockerfile: ENTRYPOINT: %w", err)
	}
	for _, d := range []string{"tmp", "runs", "data", "proc", "dev", "sys", "etc", filepath.Dir(string(build[2]))} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, err
		}
	}
	if err := os.Chmod(filepath.Join(dir, "tmp"), os.ModeSticky|0o777); err != nil {
		return nil, err
	}
	// With -trimpath nothing of the build cache could be used.
	build[1] = bytes.ReplaceAll(build[1], []byte(" -trimpath"), nil)
	command := exec.Command("sh", "-c", fmt.Sprintf("%s -buildvcs=false -o %q %s", build[1], filepath.Join(dir, string(build[2])), build[3]))
	command.Dir = ".."
	if out, err := command.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s: %w\n%s", command, err, out)
	}
	return im, nil
}

// layer returns the bytes that a registry keeps of the image, and those that a disk does.
func (im *image) layer() (packed, whole int64, err error) {
	var n counter
	z := gzip.NewWriter(&n)
	err = filepath.WalkDir(im.root, func(p string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		defer f.Close()
		k, err := io.Copy(z, f)
		whole += k
		return err
	})
	if err == nil {
		err = z.Close()
	}
	return int64(n), whole, err
}

type counter int64

func (c *counter) Write(p []byte) (int, error) { *c += counter(len(p)); return len(p), nil }

// A node is one container: one machine of a job.
type node struct {
	hostname string
	args     []string
	env      []string
	shm      string // size of /dev/shm
	readOnly bool
	runs     string // directory at /runs
	mayFind  bool   // doctor's exit code 1 is no failure
}

// bundle writes what runc starts: a container in the network of a namespace, whose user has no
// capability.
func (im *image) bundle(dir, network, hosts string, n node) error {
	var uid int
	if _, err := fmt.Sscan(im.user, &uid); err != nil {
		return fmt.Errorf("container/Dockerfile: USER %s: %w", im.user, err)
	}
	type object = map[string]any
	mount := func(at, kind string, options ...string) object {
		return object{"destination": at, "type": kind, "source": kind, "options": options}
	}
	bind := func(at, from string, options ...string) object {
		return object{"destination": at, "source": from, "options": append(options, "bind")}
	}
	config := object{
		"ociVersion": "1.0.2",
		"hostname":   n.hostname,
		"root":       object{"path": im.root, "readonly": n.readOnly},
		"process": object{
			"user": object{"uid": uid, "gid": uid}, "cwd": im.dir, "noNewPrivileges": true, "capabilities": object{},
			"args": append(append([]string{}, im.entrypoint...), n.args...), "env": append(append([]string{}, im.env...), n.env...),
		},
		"mounts": []object{
			mount("/proc", "proc"), mount("/dev", "tmpfs", "nosuid", "mode=755", "size=64k"),
			mount("/dev/shm", "tmpfs", "nosuid", "noexec", "nodev", "mode=1777", "size="+n.shm),
			mount("/tmp", "tmpfs", "mode=1777", "size=64m"), bind("/runs", n.runs, "rw"), bind("/etc", filepath.Dir(hosts), "ro"),
		},
		"linux": object{"namespaces": []object{
			{"type": "pid"}, {"type": "ipc"}, {"type": "uts"}, {"type": "mount"}, {"type": "network", "path": "/run/netns/" + network},
		}},
	}
	text, err := json.Marshal(config)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), text, 0o600)
}

// run starts the nodes, each in a network namespace of its own, waits for their ends and returns
// what they printed. names are those by which they find each other, in the nodes' order.
func (im *image) run(t *testing.T, names []string, nodes []node) []string {
	t.Helper()
	id := fmt.Sprintf("cohort%d-", os.Getpid())
	shell := func(line string) {
		t.Helper()
		if out, err := exec.Command("sh", "-ec", line).CombinedOutput(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	switchName := id + "s"
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1 localhost\n")
	shell("ip netns add " + switchName + "; ip -n " + switchName + " link add br0 type bridge; ip -n " + switchName + " link set br0 up")
	t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", switchName).Run() })
	for i, n := range nodes {
		net := fmt.Sprint(id, i)
		shell(fmt.Sprintf("ip netns add %[1]s; ip -n %[1]s link add eth0 type veth peer name p%[2]d netns %[3]s; ip -n %[3]s link set p%[2]d master br0 up; ip -n %[1]s addr add 10.77.0.%[4]d/24 dev eth0; ip -n %[1]s link set eth0 up; ip -n %[1]s link set lo up",
			net, i, switchName, i+1))
		t.Cleanup(func() { _ = exec.Command("ip", "netns", "del", net).Run() })
		fmt.Fprintf(&hosts, "10.77.0.%d %s %s\n", i+1, names[i], n.hostname)
	}
	etc := t.TempDir()
	for name, text := range map[string]string{"hosts": hosts.String(), "passwd": "cohort:x:65532:65532::/runs:\n", "group": "cohort:x:65532:\n"} {
		if err := os.WriteFile(filepath.Join(etc, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(etc, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out := make([]string, len(nodes))
	errs := make([]error, len(nodes))
	var running sync.WaitGroup
	for i, n := range nodes {
		dir, name := t.TempDir(), fmt.Sprint(id, i)
		if err := im.bundle(dir, name, filepath.Join(etc, "hosts"), n); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			command := exec.CommandContext(ctx, "runc", "run", "--bundle", dir, name)
			command.Cancel = func() error { return exec.Command("runc", "kill", name, "KILL").Run() }
			text, err := command.CombinedOutput()
			out[i], errs[i] = string(text), err
		})
	}
	running.Wait()
	for i, err := range errs {
		var ended *exec.ExitError
		if errors.As(err, &ended) && ended.ExitCode() == 1 && nodes[i].mayFind {
			err = nil
		}
		if err != nil {
			t.Fatalf("%s: %v\n%s", nodes[i].hostname, err, out[i])
		}
	}
	return out
}

var built = sync.OnceValues(func() (*image, error) {
	var err error
	if root, err = os.MkdirTemp("", "cohort-image-"); err != nil {
		return nil, err
	}
	if err := os.Chmod(root, 0o755); err != nil {
		return nil, err
	}
	return newImage(root)
})

// root is where built has put the image, if a test has asked for it.
var root string

func TestMain(m *testing.M) {
	code := m.Run()
	if root != "" {
		_ = os.RemoveAll(root)
	}
	os.Exit(code)
}

func needContainers(t *testing.T) *image {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can make containers and networks")
	}
	for _, program := range []string{"runc", "ip"} {
		if _, err := exec.LookPath(program); err != nil {
			t.Skipf("there is no %s", program)
		}
	}
	im, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return im
}

// runsOf returns a directory that the image's user can write, as a volume is.
func runsOf(t *testing.T) string {
	dir := t.TempDir()
	for d := dir; d != os.TempDir() && d != "/"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chown(dir, 65532, 65532); err != nil {
		t.Fatal(err)
	}
	return dir
}

// shorter makes a job of a manifest end soon.
func shorter(args []string) []string {
	for i, a := range args {
		switch {
		case strings.HasPrefix(a, "--steps="):
			args[i] = "--steps=3"
		case a == "--steps":
			args[i+1] = "3"
		}
	}
	return args
}

const token = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

// TestImage: the image is small, and its user trains in it with two ranks, with a root that it
// cannot write, and with less shared memory than Docker gives. Others need 256 MiB of it, and
// doctor says what is missing when there is less.
func TestImage(t *testing.T) {
	im := needContainers(t)
	packed, whole, err := im.layer()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("image: %.1f MB in a registry, %.1f MB on disk", float64(packed)/1e6, float64(whole)/1e6)
	if packed > 30e6 {
		t.Errorf("the image has %d bytes, want 30 MB at most", packed)
	}
	// A program of which the linker can leave nothing out has a quarter more (internal/markup).
	if whole > 37e6 {
		t.Errorf("the image has %d bytes on disk, want 37 MB at most", whole)
	}
	runs := runsOf(t)
	t.Run("train", func(t *testing.T) {
		im.run(t, []string{"alone"}, []node{{hostname: "alone", shm: "1m", readOnly: true, runs: runs, args: []string{"train", "lm", "--ranks", "2", "--steps", "3"}}})
	})
	if _, err := os.Stat(filepath.Join(runs, "out/lm/step-00000003")); err != nil {
		t.Error(err)
	}
	for shm, small := range map[string]bool{"256m": false, "1m": true} {
		t.Run("shared memory of "+shm, func(t *testing.T) {
			out := im.run(t, []string{"alone"}, []node{{hostname: "alone", shm: shm, readOnly: true, runs: runs, mayFind: true, args: []string{"doctor"}}})
			for _, w := range []string{"/dev/shm has 1 MiB", "--shm-size 2g"} {
				if strings.Contains(out[0], w) != small {
					t.Errorf("doctor says\n%s", out[0])
				}
			}
		})
	}
}

// TestCompose: the two services of compose.yaml meet under their names and train together.
func TestCompose(t *testing.T) {
	im := needContainers(t)
	text, err := os.ReadFile("container/compose.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Services map[string]struct {
			Hostname    string
			Command     []string
			Environment map[string]string
			ReadOnly    bool     `yaml:"read_only"`
			ShmSize     string   `yaml:"shm_size"`
			CapDrop     []string `yaml:"cap_drop"`
		}
	}
	if err := yaml.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	runs := runsOf(t)
	var nodes []node
	for _, name := range []string{"node0", "node1"} {
		s := file.Services[name]
		if s.Environment["COHORT_TOKEN"] == "" || len(s.CapDrop) != 1 {
			t.Fatalf("%s: %+v", name, s)
		}
		nodes = append(nodes, node{hostname: s.Hostname, args: shorter(s.Command), env: []string{"COHORT_TOKEN=" + token}, shm: s.ShmSize, readOnly: s.ReadOnly, runs: runs})
	}
	if len(file.Services) != len(nodes) {
		t.Errorf("%d services, want %d", len(file.Services), len(nodes))
	}
	if out := im.run(t, []string{"node0", "node1"}, nodes); !strings.Contains(out[0], "ranks   4 of") {
		t.Errorf("not all ranks train together:\n%s", out[0])
	}
	if _, err := os.Stat(filepath.Join(runs, "lm/step-00000003")); err != nil {
		t.Error(err)
	}
}

// TestIndexedJob: the pods of job.yaml meet under the names of the Service and train together.
func TestIndexedJob(t *testing.T) {
	im := needContainers(t)
	objects, err := decode("kubernetes/job.yaml")
	if err != nil {
		t.Fatal(err)
	}
	job := objects[0].(*batch.Job)
	container := job.Spec.Template.Spec.Containers[0]
	runs := runsOf(t)
	var nodes []node
	var names []string
	for i := range int(*job.Spec.Completions) {
		host := fmt.Sprintf("%s-%d", job.Name, i)
		names = append(names, host+"."+job.Spec.Template.Spec.Subdomain)
		nodes = append(nodes, node{
			hostname: host, args: shorter(append([]string{}, container.Args...)), shm: "64m", readOnly: *container.SecurityContext.ReadOnlyRootFilesystem, runs: runs,
			env: []string{"COHORT_TOKEN=" + token, "KUBERNETES_SERVICE_HOST=10.96.0.1", fmt.Sprintf("JOB_COMPLETION_INDEX=%d", i)},
		})
	}
	if out := im.run(t, names, nodes); !strings.Contains(strings.Join(out, ""), "ranks   8 of") {
		t.Errorf("not all ranks train together:\n%s", out)
	}
	if _, err := os.Stat(filepath.Join(runs, "lm/step-00000003")); err != nil {
		t.Error(err)
	}
}
