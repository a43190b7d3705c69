// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"io"
	"net"
	"testing"
	"time"
)

// Strangers at the socket of a bench, who say nothing or something else,
// neither get it nor hold it up.
func TestRawSocketStrangers(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dial := func(say string) net.Conn {
		nc, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		_, _ = io.WriteString(nc, say)
		return nc
	}
	number := fmt.Sprintf("%016x", 12345)
	var strangers []net.Conn
	for _, say := range []string{"", "0", "GET / HTTP/1.1\r\n\r\n", number[:15] + "x", ""} {
		strangers = append(strangers, dial(say))
	}
	right := dial(number)
	start := time.Now()
	got, err := acceptNumber(l, number, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer got.Close()
	if took := time.Since(start); took > 10*time.Second {
		t.Errorf("strangers held it up for %v", took)
	}
	if _, err := got.Write([]byte("yes")); err != nil {
		t.Fatal(err)
	}
	answer := make([]byte, 3)
	if _, err := io.ReadFull(right, answer); err != nil || string(answer) != "yes" {
		t.Errorf("%q, %v", answer, err)
	}
	for i, nc := range strangers {
		_ = nc.SetReadDeadline(time.Now().Add(10 * time.Second))
		if b, _ := io.ReadAll(nc); len(b) > 0 {
			t.Errorf("stranger %d got %q", i, b)
		}
	}
}
