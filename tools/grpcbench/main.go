// SPDX-License-Identifier: Apache-2.0

// Command grpcbench is grpc-go's half of compare.py's case rpc: calls without
// content, and an echo of some MiB, between two processes of this host. It hands
// bytes to gRPC as they are, without protobuf, which is the best that gRPC can
// do for tensors. It prints a JSON object a case.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
)

func main() {
	serve := flag.String("serve", "", "serve on this `network`, and print the address")
	network := flag.String("network", "tcp", "tcp or unix")
	tuned := flag.Bool("tuned", true, "windows and buffers for large messages")
	sizes := flag.String("bytes", "16777216", "of echoes, as in 1048576,16777216")
	calls := flag.Int("calls", 500, "without content")
	flag.Parse()
	var err error
	if *serve != "" {
		err = server(*serve, *tuned)
	} else {
		err = client(*network, *tuned, *sizes, *calls)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "grpcbench:", err)
		os.Exit(1)
	}
}

// rawCodec passes bytes through.
type rawCodec struct{}

func (rawCodec) Name() string { return "raw" }

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(*v.(*[]byte))}, nil
}

// Unmarshal puts a message together in memory that is used again, as a reader of
// tensors would.
func (rawCodec) Unmarshal(data mem.BufferSlice, v any) error {
	p := v.(*[]byte)
	n := data.Len()
	*p = slices.Grow((*p)[:0], n)[:n]
	data.CopyTo(*p)
	return nil
}

var _ encoding.CodecV2 = rawCodec{}

const (
	window = 64 << 20
	buffer = 1 << 20
	limit  = 1 << 30
)

type echoServer interface {
	echo(ctx context.Context, in []byte) ([]byte, error)
}

type echoes struct{}

func (echoes) echo(_ context.Context, in []byte) ([]byte, error) { return in, nil }

var service = grpc.ServiceDesc{
	ServiceName: "bench.Echo",
	HandlerType: (*echoServer)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Echo",
		Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			var in []byte
			if err := decode(&in); err != nil {
				return nil, err
			}
			out, err := srv.(echoServer).echo(ctx, in)
			return &out, err
		},
	}},
}

// server serves until its standard input ends.
func server(network string, tuned bool) error {
	address := "127.0.0.1:0"
	if network == "unix" {
		address = fmt.Sprintf("@cohort-grpcbench-%d", os.Getpid())
	}
	ln, err := net.Listen(network, address)
	if err != nil {
		return err
	}
	options := []grpc.ServerOption{grpc.ForceServerCodecV2(rawCodec{}), grpc.MaxRecvMsgSize(limit), grpc.MaxSendMsgSize(limit)}
	if tuned {
		options = append(options, grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(2*window),
			grpc.ReadBufferSize(buffer), grpc.WriteBufferSize(buffer), grpc.NumStreamWorkers(8))
	}
	s := grpc.NewServer(options...)
	s.RegisterService(&service, echoes{})
	fmt.Println(ln.Addr())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		s.Stop()
	}()
	return s.Serve(ln)
}

// result is what is printed of a case.
type result struct {
	Case      string  `json:"case"`
	Transport string  `json:"transport"`
	Bytes     int     `json:"bytes,omitempty"`
	Median    float64 `json:"median_us"`
	Min       float64 `json:"min_us"`
	Version   string  `json:"version"`
}

func client(network string, tuned bool, sizes string, calls int) error {
	cmd := exec.Command(os.Args[0], "-serve", network, "-tuned="+strconv.FormatBool(tuned))
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	defer func() {
		in.Close()
		_ = cmd.Wait()
	}()
	var address string
	if _, err := fmt.Fscanln(out, &address); err != nil {
		return err
	}
	target := "passthrough:///" + address
	if network == "unix" {
		target = "unix-abstract:" + strings.TrimPrefix(address, "@")
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec{}), grpc.MaxCallRecvMsgSize(limit), grpc.MaxCallSendMsgSize(limit)),
	}
	if tuned {
		options = append(options, grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(2*window),
			grpc.WithReadBufferSize(buffer), grpc.WithWriteBufferSize(buffer))
	}
	conn, err := grpc.NewClient(target, options...)
	if err != nil {
		return err
	}
	defer conn.Close()
	measure := func(name string, size, warm, reps int) error {
		request, reply := make([]byte, size), make([]byte, 0, size)
		var times []float64
		for i := range warm + reps {
			start := time.Now()
			if err := conn.Invoke(context.Background(), "/bench.Echo/Echo", &request, &reply); err != nil {
				return err
			}
			if len(reply) != size {
				return fmt.Errorf("%d bytes came back of %d", len(reply), size)
			}
			if i >= warm {
				times = append(times, float64(time.Since(start).Nanoseconds())/1e3)
			}
		}
		slices.Sort(times)
		return json.NewEncoder(os.Stdout).Encode(result{name, network, size, times[len(times)/2], times[0], grpc.Version})
	}
	if err := measure("noop", 0, 50, calls); err != nil {
		return err
	}
	for _, text := range strings.Split(sizes, ",") {
		size, err := strconv.Atoi(text)
		if err != nil {
			return err
		}
		if err := measure("echo", size, 1, 7); err != nil {
			return err
		}
	}
	return nil
}
