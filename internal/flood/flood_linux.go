// SPDX-License-Identifier: Apache-2.0

package flood

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Config says who attacks what.
type Config struct {
	Network string // "tcp" or "unix"
	Address string // "127.0.0.1:29500", or "@name"
	Num     int    // connections at once
	Say     []byte // what each says before it falls silent
	// Sources are the addresses that connections come from, in turn; none is the
	// system's choice.
	Sources []netip.Addr
}

// Sources returns n loopback addresses that no job uses.
func Sources(n int) []netip.Addr {
	var list []netip.Addr
	for i := range n {
		list = append(list, netip.AddrFrom4([4]byte{127, 0, 1 + byte(i/200), 1 + byte(i%200)}))
	}
	return list
}

// Stats is what an attack has come to so far.
type Stats struct {
	Made   int // connections, as far as the system of this side can tell
	Closed int // by the other side
	Failed int // refused, or turned away by the system
	Bytes  int // that strangers got
}

func (s Stats) String() string {
	return fmt.Sprintf("made %d closed %d failed %d bytes %d", s.Made, s.Closed, s.Failed, s.Bytes)
}

// Pin has this process, as far as it has not begun others, compute on one processor alone.
func Pin(processor int) error {
	var set unix.CPUSet
	set.Set(processor)
	return unix.SchedSetaffinity(0, &set)
}

// Run attacks until stop is closed. full is called once, when all connections stand
// or as many as come in a second.
func Run(c Config, stop <-chan struct{}, full func()) (Stats, error) {
	f := &flood{Config: c, open: map[int32]bool{}}
	to, err := f.resolve()
	if err != nil {
		return f.stats, err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if f.poll, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return f.stats, err
	}
	defer unix.Close(f.poll)
	defer func() {
		for fd := range f.open {
			unix.Close(int(fd))
		}
	}()
	events := make([]unix.EpollEvent, 512)
	began, told := time.Now(), false
	for {
		select {
		case <-stop:
			return f.stats, nil
		default:
		}
		wait := 0
		for range 256 {
			if len(f.open) >= c.Num {
				wait = 10
				break
			}
			if err := f.connect(to); err != nil {
				wait = 1
				break
			}
		}
		if !told && (f.stats.Made >= c.Num || time.Since(began) > time.Second) {
			told = true
			full()
		}
		n, err := unix.EpollWait(f.poll, events, wait)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return f.stats, err
		}
		for _, e := range events[:max(n, 0)] {
			f.take(e)
		}
	}
}

type flood struct {
	Config
	poll  int
	next  int
	open  map[int32]bool // by descriptor: whether it stands
	stats Stats
}

func (f *flood) resolve() (unix.Sockaddr, error) {
	if f.Network == "unix" {
		return &unix.SockaddrUnix{Name: f.Address}, nil
	}
	at, err := net.ResolveTCPAddr("tcp4", f.Address)
	if err != nil {
		return nil, err
	}
	return &unix.SockaddrInet4{Port: at.Port, Addr: [4]byte(at.IP.To4())}, nil
}

// connect begins a connection.
func (f *flood) connect(to unix.Sockaddr) error {
	family := unix.AF_INET
	if f.Network == "unix" {
		family = unix.AF_UNIX
	}
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		f.stats.Failed++
		return err
	}
	if len(f.Sources) > 0 && family == unix.AF_INET {
		_ = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_BIND_ADDRESS_NO_PORT, 1)
		from := f.Sources[f.next%len(f.Sources)].As4()
		f.next++
		if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: from}); err != nil {
			unix.Close(fd)
			return err
		}
	}
	err = unix.Connect(fd, to)
	if err != nil && !errors.Is(err, syscall.EINPROGRESS) {
		unix.Close(fd)
		f.stats.Failed++
		return err
	}
	if err := unix.EpollCtl(f.poll, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLOUT | unix.EPOLLRDHUP | unix.EPOLLET&0xffffffff, Fd: int32(fd)}); err != nil {
		unix.Close(fd)
		return err
	}
	f.open[int32(fd)] = false
	return nil
}

// take takes what has happened to a connection.
func (f *flood) take(e unix.EpollEvent) {
	fd := int(e.Fd)
	if e.Events&unix.EPOLLOUT != 0 && e.Events&unix.EPOLLERR == 0 && !f.open[e.Fd] {
		f.open[e.Fd] = true
		f.stats.Made++
		if len(f.Say) > 0 {
			_, _ = unix.Write(fd, f.Say)
		}
	}
	if e.Events&(unix.EPOLLIN|unix.EPOLLRDHUP|unix.EPOLLHUP|unix.EPOLLERR) == 0 {
		return
	}
	var buf [512]byte
	for {
		n, err := unix.Read(fd, buf[:])
		if n > 0 {
			f.stats.Bytes += n
			continue
		}
		if errors.Is(err, unix.EAGAIN) {
			return
		}
		break
	}
	if f.open[e.Fd] {
		f.stats.Closed++
	} else {
		f.stats.Failed++
	}
	delete(f.open, e.Fd)
	unix.Close(fd)
}
