// SPDX-License-Identifier: Apache-2.0

package dist

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/tensor"
)

// twoHosts makes a network of its own in which two addresses of this machine
// look like two hosts to who connects them: each is reached from the other.
const twoHosts = `set -e
ip link set lo up
ip addr add 10.99.0.3/32 dev lo
ip addr add 10.99.0.4/32 dev lo
ip route replace local 10.99.0.3 dev lo table local src 10.99.0.4
ip route replace local 10.99.0.4 dev lo table local src 10.99.0.3
exec "$@"`

// inOwnNetwork is set in the process of a test that has a network of its own.
const inOwnNetwork = "DIST_TEST_OWN_NETWORK"

// rerunInNetwork runs the test once more in a network of its own that a script
// makes, and says whether this is that run.
func rerunInNetwork(t *testing.T, script string) bool {
	if os.Getenv(inOwnNetwork) != "" {
		return true
	}
	for _, tool := range []string{"ip", "unshare"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skip(err)
		}
	}
	args := []string{"--net", "sh", "-c", script, "sh", os.Args[0], "-test.run", "^" + t.Name() + "$"}
	if os.Geteuid() != 0 {
		args = append([]string{"--map-root-user"}, args...)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.Env = append(os.Environ(), inOwnNetwork+"=1")
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if err != nil {
		if !bytes.Contains(out, []byte("--- FAIL")) && !bytes.Contains(out, []byte("panic:")) {
			t.Skipf("no network of its own: %s", out)
		}
		t.Errorf("%s", out)
	}
	return false
}

// capture records what goes over the loopback interface until stop is called.
func capture(t *testing.T) (stop func() []byte) {
	t.Helper()
	all := uint16(unix.ETH_P_ALL)
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(all>>8|all<<8))
	if err != nil {
		t.Fatal(err)
	}
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	_ = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	ended, enough := make(chan []byte), make(chan struct{})
	go func() {
		var heard []byte
		buf := make([]byte, 128<<10)
		for over := false; ; {
			n, err := unix.Read(fd, buf)
			if err == nil {
				heard = append(heard, buf[:n]...)
				continue
			}
			if over { // nothing came for a while after the end
				break
			}
			select {
			case <-enough:
				over = true
			default:
			}
		}
		_ = unix.Close(fd)
		ended <- heard
	}()
	return func() []byte {
		close(enough)
		return <-ended
	}
}

// twoRanks forms a group of two ranks on two hosts, under the policies given.
func twoRanks(t *testing.T, policies [2]string, main func(context.Context, *Group) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	errs := make([]error, 2)
	var wg sync.WaitGroup
	for r := range 2 {
		t.Setenv(string(envvar.Encrypt), policies[r])
		wg.Go(func() {
			opts := []Option{WithURL(fmt.Sprintf("tcp://10.99.0.3:29444?rank=%d&world_size=2", r)), WithNodeID(fmt.Sprint("node ", r))}
			g, err := Init(ctx, opts...)
			if err != nil {
				errs[r] = err
				cancel()
				return
			}
			if errs[r] = main(ctx, g); errs[r] != nil {
				g.fail(errs[r])
			}
			errs[r] = errors.Join(errs[r], g.Close())
		})
		// Both ranks have this process's environment: when rank 0 listens, it has read it.
		for r == 0 && policies[0] != policies[1] && ctx.Err() == nil {
			if nc, err := net.Dial("tcp", "10.99.0.3:29444"); err == nil {
				nc.Close()
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// What ranks of two hosts say to each other, where they meet and who has
// failed, cannot be read on the way, unless the job wants it so; the data of
// collectives can, unless the job wants it hidden.
func TestEncryptBetweenHosts(t *testing.T) {
	if !rerunInNetwork(t, twoHosts) {
		return
	}
	const value = 12345.678
	data := bytes.Repeat(binary.LittleEndian.AppendUint32(nil, math.Float32bits(value)), 32)
	for _, tt := range []struct {
		policy             string
		meeting, collected bool // whether they can be read
	}{{"control", false, true}, {"all", false, false}, {"none", true, true}} {
		stop := capture(t)
		err := twoRanks(t, [2]string{tt.policy, tt.policy}, func(ctx context.Context, g *Group) error {
			x := tensor.New(tensor.CPU(), tensor.Float32, 1000)
			x.Fill(value)
			if err := g.AllReduce(ctx, x, Max); err != nil {
				return err
			}
			sub, err := g.NewGroup(ctx, []int{1, 0})
			if err != nil {
				return err
			}
			if err := sub.Broadcast(ctx, x, 0); err != nil {
				return err
			}
			return errors.Join(g.Store().Set(ctx, "greeting", []byte("hello, hello")), sub.Close())
		})
		heard := stop()
		if err != nil {
			t.Errorf("%s: %v", tt.policy, err)
		}
		if len(heard) < 10_000 {
			t.Fatalf("%s: %d bytes were heard, which cannot be all", tt.policy, len(heard))
		}
		for _, word := range []string{"introduction", "hello, hello", `"host"`} {
			if got := bytes.Contains(heard, []byte(word)); got != tt.meeting {
				t.Errorf("%s: %q can be read: %v, want %v", tt.policy, word, got, tt.meeting)
			}
		}
		if got := bytes.Contains(heard, data); got != tt.collected {
			t.Errorf("%s: the data can be read: %v, want %v", tt.policy, got, tt.collected)
		}
		if bytes.Contains(heard, []byte(os.Getenv(string(envvar.Token)))) {
			t.Errorf("%s: the token can be read", tt.policy)
		}
	}
}

// Ranks of different policies are told so.
func TestEncryptMismatch(t *testing.T) {
	if !rerunInNetwork(t, twoHosts) {
		return
	}
	for _, policies := range [][2]string{{"control", "none"}, {"all", "none"}, {"none", "all"}, {"control", "all"}} {
		err := twoRanks(t, policies, func(context.Context, *Group) error { return nil })
		if err == nil || !strings.Contains(err.Error(), string(envvar.Encrypt)) {
			t.Errorf("%v: %v, want an error that names %s", policies, err, envvar.Encrypt)
		}
	}
	if err := twoRanks(t, [2]string{"some", "some"}, nil); err == nil || !strings.Contains(err.Error(), `"some"`) {
		t.Errorf("a policy that there is not: %v", err)
	}
}
