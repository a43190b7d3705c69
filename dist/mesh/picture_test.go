// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"testing"

	"github.com/cohort-ml/cohort/dist"
)

func TestPictures(t *testing.T) {
	sketch := func(rank int, axes ...Axis) *Mesh {
		m, err := Sketch(rank, axes...)
		if err != nil {
			t.Fatal(err)
		}
		return m
	}
	grid := sketch(2, Axis{"replicate", 2}, Axis{"fsdp", 4})
	sub, err := grid.Sub("replicate")
	if err != nil {
		t.Fatal(err)
	}
	square := sketch(0, Axis{"dp", 2}, Axis{"tp", 2})
	for want, got := range map[string]string{
		`replicate 2 × fsdp 4
             fsdp 0  1  2  3
replicate 0       0  1  2* 3
replicate 1       4  5  6  7
`: grid.String(),
		`replicate 2
replicate 0  1
          2* 6
`: sub.String(),
		`pp 2 × dp 2 × tp 2
           tp 0  1
pp 0 dp 0     0* 1
pp 0 dp 1     2  3
pp 1 dp 0     4  5
pp 1 dp 1     6  7
`: sketch(0, Axis{"pp", 2}, Axis{"dp", 2}, Axis{"tp", 2}).String(),
		"1\n0*\n": sketch(0).String(),
		`[5 4] as Shard(0), Shard(1) over dp 2 × tp 2
          tp 0         1
dp 0  0:3, 0:2  0:3, 2:4
dp 1  3:5, 0:2  3:5, 2:4
`: Layout{square, []int{5, 4}, []Placement{Shard(0), Shard(1)}}.Picture(),
		`[3 4] as Partial(sum), Shard(0) over dp 2 × tp 2
        tp 0       1
dp 0  0:2, :  2:3, :
dp 1  0:2, :  2:3, :
`: Layout{square, []int{3, 4}, []Placement{Partial(dist.Sum), Shard(0)}}.Picture(),
		`[5] as StridedShard(0, 2), Replicate over dp 2 × tp 2
         tp 0        1
dp 0  0:2+3:4  0:2+3:4
dp 1  2:3+4:5  2:3+4:5
`: Layout{square, []int{5}, []Placement{StridedShard(0, 2), Replicate()}}.Picture(),
		`[1] as Shard(0) over replicate 2
replicate 0  1
          :  –
`: Layout{sub, []int{1}, []Placement{Shard(0)}}.Picture(),
	} {
		if got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
}
