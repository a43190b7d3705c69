// SPDX-License-Identifier: Apache-2.0

// Package s3test has servers of S3's protocol for tests, and a proxy that spoils
// what goes to them.
//
// [GoFake] is a server within the process (gofakes3). [Moto] is a process of one that
// is written in Python; the test skips where no interpreter has it. [NewProxy] stands
// before one of them and refuses, delays, loses, cuts and repeats requests by a seed.
//
// Caveats. The servers keep objects in memory, and do not check signatures. A server
// and a proxy end with their test. The faults of a proxy are those of its seed if requests
// come in the same order, which goroutines do not promise.
package s3test

import (
	"bufio"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/johannesboyne/gofakes3"
	"github.com/johannesboyne/gofakes3/backend/s3mem"
)

// BucketName is the bucket of every server.
const BucketName = "runs"

// Server is a server with an empty bucket.
type Server struct {
	Name string
	URL  string
}

// Address returns the address of a prefix in the bucket, with further parameters
// such as "part=5MiB".
func (s *Server) Address(prefix string, params ...string) string {
	return fmt.Sprintf("s3://%s/%s?%s", BucketName, prefix, strings.Join(append(params, "endpoint="+s.URL), "&"))
}

// Credentials gives the test credentials in the environment.
func Credentials(t testing.TB) {
	t.Setenv("AWS_ACCESS_KEY_ID", "test-key")
	t.Setenv("AWS_SECRET_ACCESS_KEY", "test-secret")
	for _, name := range []string{"AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3"} {
		t.Setenv(name, "")
	}
}

// GoFake starts a server within the process, written in Go.
func GoFake(t testing.TB) *Server {
	t.Helper()
	backend := s3mem.New()
	if err := backend.CreateBucket(BucketName); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(gofakes3.New(backend).Server())
	t.Cleanup(s.Close)
	return &Server{Name: "gofakes3", URL: s.URL}
}

const motoScript = `
import sys
from moto.server import ThreadedMotoServer
server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
server.start()
print("http://%s:%d" % server.get_host_and_port(), flush=True)
sys.stdin.read()  # ends with the test
server.stop()
`

// Moto starts a process of moto's server, written in Python, with python3 or one of
// the interpreters given. The test skips where none of them has moto.
func Moto(t testing.TB, pythons ...string) *Server {
	t.Helper()
	python := ""
	for _, name := range append([]string{"python3"}, pythons...) {
		if path, err := exec.LookPath(name); err == nil && exec.Command(path, "-c", "import moto.server").Run() == nil {
			python = path
			break
		}
	}
	if python == "" {
		t.Skip("no python3 here has moto (pip install 'moto[s3,server]', or list interpreters in COHORT_TEST_PYTHONS)")
	}
	cmd := exec.Command(python, "-c", motoScript)
	cmd.Env = slices.DeleteFunc(cmd.Environ(), func(v string) bool { return strings.HasPrefix(v, "AWS_") })
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		cmd.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("moto's server does not start: %v", err)
	}
	s := &Server{Name: "moto", URL: strings.TrimSpace(line)}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, s.URL+"/"+BucketName, nil)
	if err != nil {
		t.Fatal(err)
	}
	// moto looks only whether there is a signature, and for which service.
	req.Header.Set("Authorization", "AWS4-HMAC-SHA256 Credential=test-key/20260101/us-east-1/s3/aws4_request, SignedHeaders=host, Signature=0")
	resp, err := http.DefaultClient.Do(req)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("moto makes no bucket: %v, %v", resp, err)
	}
	resp.Body.Close()
	return s
}
