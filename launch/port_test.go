// SPDX-License-Identifier: Apache-2.0

package launch

import (
	"fmt"
	"net"
	"strconv"
	"strings"
	"testing"
)

func TestPorts(t *testing.T) {
	port, err := FreePort("127.0.0.1")
	if err != nil || port < firstPort || port > lastPort {
		t.Fatalf("free port %d, %v", port, err)
	}
	l, err := net.Listen("tcp", ":"+strconv.Itoa(port)) // all addresses of the machine
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := checkPort("127.0.0.1", port); err == nil || !strings.Contains(err.Error(), fmt.Sprint(port)) {
		t.Errorf("a port that is listened on: %v", err)
	}
}
