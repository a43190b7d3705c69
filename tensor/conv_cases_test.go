// SPDX-License-Identifier: Apache-2.0

package tensor

func convCases(Device) []opCase {
	conv := func(name string, x, w []int, bias bool, o Conv2dOptions) opCase {
		c := opCase{name: name, shapes: [][]int{x, w}}
		if bias {
			c.shapes = append(c.shapes, []int{w[0]})
		}
		c.apply = func(in []*Tensor) *Tensor {
			if bias {
				return Conv2d(in[0], in[1], in[2], o)
			}
			return Conv2d(in[0], in[1], nil, o)
		}
		c.naive = func(in []array) array { return naiveConv2d(in, o.withDefaults()) }
		return c
	}
	return []opCase{
		conv("conv2d", []int{2, 3, 5, 4}, []int{4, 3, 3, 3}, true, Conv2dOptions{Padding: [2]int{1, 1}}),
		conv("conv2d 1x1", []int{2, 3, 3, 2}, []int{5, 3, 1, 1}, false, Conv2dOptions{}),
		conv("conv2d stride", []int{1, 2, 7, 6}, []int{3, 2, 3, 2}, true, Conv2dOptions{Stride: [2]int{2, 3}, Padding: [2]int{1, 0}}),
		conv("conv2d dilated", []int{1, 2, 7, 6}, []int{2, 2, 3, 2}, false, Conv2dOptions{Padding: [2]int{2, 1}, Dilation: [2]int{2, 3}}),
		conv("conv2d grouped", []int{2, 4, 4, 4}, []int{6, 2, 2, 2}, true, Conv2dOptions{Groups: 2}),
		conv("conv2d depthwise", []int{2, 3, 5, 5}, []int{3, 1, 3, 3}, true, Conv2dOptions{Stride: [2]int{2, 2}, Padding: [2]int{1, 1}, Groups: 3}),
		{
			name: "conv2d strided operands", shapes: [][]int{{4, 5, 2, 3}, {3, 3, 3, 2}, {1}},
			apply: func(in []*Tensor) *Tensor {
				return Conv2d(in[0].Permute(2, 3, 0, 1), in[1].Permute(3, 0, 1, 2), in[2].Expand(2), Conv2dOptions{})
			},
			naive: func(in []array) array {
				x, w := in[0], in[1]
				return naiveConv2d([]array{
					fromIndex([]int{2, 3, 4, 5}, func(i []int) float64 { return x.at(i[2], i[3], i[0], i[1]) }),
					fromIndex([]int{2, 3, 3, 3}, func(i []int) float64 { return w.at(i[1], i[2], i[3], i[0]) }),
					{[]int{2}, []float64{in[2].data[0], in[2].data[0]}},
				}, Conv2dOptions{}.withDefaults())
			},
		},
		{
			name: "conv1d", shapes: [][]int{{2, 3, 8}, {4, 3, 3}, {4}},
			apply: func(in []*Tensor) *Tensor {
				return Conv1d(in[0], in[1], in[2], Conv2dOptions{Stride: [2]int{0, 2}, Padding: [2]int{0, 1}})
			},
			naive: func(in []array) array {
				y := naiveConv2d([]array{{[]int{2, 3, 1, 8}, in[0].data}, {[]int{4, 3, 1, 3}, in[1].data}, in[2]},
					Conv2dOptions{Stride: [2]int{1, 2}, Padding: [2]int{0, 1}}.withDefaults())
				return array{[]int{2, 4, 4}, y.data}
			},
		},
		{
			name: "conv transpose 2d", shapes: [][]int{{2, 4, 3, 2}, {4, 2, 3, 3}, {4}},
			apply: func(in []*Tensor) *Tensor {
				return ConvTranspose2d(in[0], in[1], in[2], Conv2dOptions{Stride: [2]int{2, 3}, Padding: [2]int{1, 1}, Groups: 2}, [2]int{1, 0})
			},
			naive: func(in []array) array {
				const groups, outPerGroup = 2, 2
				x, w := in[0], in[1]
				y := fromIndex([]int{2, 4, 6, 4}, func(i []int) float64 { return in[2].at(i[1]) })
				each(x.shape, func(i []int) {
					g := i[1] / (x.shape[1] / groups)
					each([]int{outPerGroup, 3, 3}, func(k []int) {
						row, col := i[2]*2+k[1]-1, i[3]*3+k[2]-1
						if row >= 0 && row < 6 && col >= 0 && col < 4 {
							o := g*outPerGroup + k[0]
							y.set(y.at(i[0], o, row, col)+x.at(i...)*w.at(i[1], k[0], k[1], k[2]), i[0], o, row, col)
						}
					})
				})
				return y
			},
		},
	}
}

// naiveConv2d is the definition, of x, a weight and perhaps a bias.
func naiveConv2d(in []array, o Conv2dOptions) array {
	x, w := in[0], in[1]
	size := func(d int) int {
		return (x.shape[2+d]+2*o.Padding[d]-o.Dilation[d]*(w.shape[2+d]-1)-1)/o.Stride[d] + 1
	}
	return fromIndex([]int{x.shape[0], w.shape[0], size(0), size(1)}, func(i []int) float64 {
		sum := 0.0
		if len(in) > 2 {
			sum = in[2].at(i[1])
		}
		group := i[1] / (w.shape[0] / o.Groups)
		each(w.shape[1:], func(k []int) {
			row, col := i[2]*o.Stride[0]+k[1]*o.Dilation[0]-o.Padding[0], i[3]*o.Stride[1]+k[2]*o.Dilation[1]-o.Padding[1]
			if row >= 0 && row < x.shape[2] && col >= 0 && col < x.shape[3] {
				sum += x.at(i[0], group*w.shape[1]+k[0], row, col) * w.at(i[1], k[0], k[1], k[2])
			}
		})
		return sum
	})
}
