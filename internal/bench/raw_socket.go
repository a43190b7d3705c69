// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/cohort-ml/cohort/internal/envvar"
	"github.com/cohort-ml/cohort/tensor"
)

// rawSocket measures the speed of a TCP connection between ranks 0 and 1 in both
// directions at the same time, without a protocol: one thread writes and one reads, in
// blocking calls on whole buffers.
func rawSocket(b *bed, reps int, emit func(Result) error) error {
	conn, err := rawConnection(b)
	if err != nil {
		return fmt.Errorf("bench collectives: %s: %w", rawSocketOp, err)
	}
	// A blocking call notices neither a context nor Close.
	defer context.AfterFunc(b.ctx, conn.interrupt)()
	out, in := make([]byte, b.bytes), make([]byte, b.bytes)
	for i := range out {
		out[i], in[i] = 1, 0 // pages that are there
	}
	work, sent := make(chan struct{}), make(chan error, 1)
	var writer sync.WaitGroup
	writer.Go(func() {
		for range work {
			_, err := conn.Write(out)
			sent <- err
		}
	})
	defer func() {
		close(work)
		conn.interrupt()
		writer.Wait()
		_ = conn.Close()
	}()
	raw := &bed{ctx: b.ctx, group: b.group, bytes: b.bytes}
	return raw.measure(rawSocketOp, func() error {
		work <- struct{}{}
		_, err := io.ReadFull(conn, in)
		return errors.Join(err, <-sent)
	}, reps, func(r Result) error {
		r.Backend, r.Transport = "none", "tcp"
		return emit(r)
	})
}

// blockingConn is a connection whose reads and writes block in the kernel.
type blockingConn struct {
	*os.File
	tcp *net.TCPConn // the same socket
}

// newBlockingConn takes the socket of a connection out of the runtime's poller.
func newBlockingConn(conn net.Conn) (*blockingConn, error) {
	c := &blockingConn{tcp: conn.(*net.TCPConn)}
	var err error
	if c.File, err = c.tcp.File(); err != nil {
		_ = conn.Close()
		return nil, err
	}
	c.File.Fd() // leaves it in blocking mode
	return c, nil
}

// interrupt ends the reads and writes that are under way, on both sides.
func (c *blockingConn) interrupt() { _ = errors.Join(c.tcp.CloseWrite(), c.tcp.CloseRead()) }

func (c *blockingConn) Close() error { return errors.Join(c.File.Close(), c.tcp.Close()) }

// rawConnection connects ranks 0 and 1.
func rawConnection(b *bed) (*blockingConn, error) {
	host := envvar.MasterAddr.Get("127.0.0.1")
	// Rank 0 tells its port, and a number by which it recognises rank 1: anything else
	// on this machine may connect too.
	told := tensor.New(tensor.CPU(), tensor.Int64, 2)
	told.Fill(0)
	var l net.Listener
	if b.group.Rank() == 0 {
		var err error
		if l, err = net.Listen("tcp", net.JoinHostPort(host, "0")); err != nil {
			return nil, err
		}
		defer l.Close()
		n, err := rand.Int(rand.Reader, big.NewInt(1<<53)) // a float64 has it whole
		if err != nil {
			return nil, err
		}
		told.Narrow(0, 0, 1).Fill(float64(l.Addr().(*net.TCPAddr).Port))
		told.Narrow(0, 1, 1).Fill(float64(n.Int64()))
	}
	if err := b.group.Broadcast(b.ctx, told, 0); err != nil {
		return nil, err
	}
	port, number := told.Int64s()[0], told.Int64s()[1]
	const patience = 10 * time.Second
	if b.group.Rank() != 0 {
		d := net.Dialer{Timeout: patience}
		conn, err := d.DialContext(b.ctx, "tcp", net.JoinHostPort(host, strconv.FormatInt(port, 10)))
		if err != nil {
			return nil, err
		}
		if _, err := conn.Write(fmt.Appendf(nil, "%016x", number)); err != nil {
			_ = conn.Close()
			return nil, err
		}
		return newBlockingConn(conn)
	}
	if err := l.(*net.TCPListener).SetDeadline(time.Now().Add(patience)); err != nil {
		return nil, err
	}
	return acceptNumber(l, fmt.Sprintf("%016x", number), patience)
}

// maxVisitors is the largest number of connections before that of rank 1.
const maxVisitors = 256

// acceptNumber returns the connection that sends the number. Other connections, which
// may send nothing, do not delay it.
func acceptNumber(l net.Listener, number string, patience time.Duration) (*blockingConn, error) {
	var visitors []net.Conn
	var reading sync.WaitGroup
	found := make(chan net.Conn, maxVisitors)
	for range maxVisitors {
		conn, err := l.Accept()
		if err != nil {
			break // out of time, or closed because it has come
		}
		visitors = append(visitors, conn)
		reading.Go(func() {
			hello := make([]byte, len(number))
			if conn.SetDeadline(time.Now().Add(patience)) != nil {
				return
			}
			if _, err := io.ReadFull(conn, hello); err == nil && string(hello) == number {
				found <- conn
				_ = l.Close()
			}
		})
	}
	var came net.Conn
	select {
	case came = <-found:
	default:
	}
	for _, conn := range visitors {
		if conn != came {
			_ = conn.Close()
		}
	}
	reading.Wait()
	if came == nil {
		return nil, fmt.Errorf("rank 1 has not come within %v", patience)
	}
	if err := came.SetDeadline(time.Time{}); err != nil {
		_ = came.Close()
		return nil, err
	}
	return newBlockingConn(came)
}
