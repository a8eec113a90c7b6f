// cuDNN over the host's memory: convolutions and their gradients, one product after the other, in single precision.
#include <cstdint>
#include <cstring>
#include <vector>

namespace {
struct Tensor { std::vector<int> sizes, strides; };
struct Geometry { std::vector<int> padding, stride, dilation; int groups = 1; };
struct Performance { int algorithm, status; float time; size_t memory; int determinism, math, reserved[3]; };

Tensor& tensor(void* made) { return *static_cast<Tensor*>(made); }

// For each pair of a result and what it is made of: places of images, filters and results.
template <class Visit>
void visit(Tensor& x, Tensor& w, Tensor& y, Geometry& g, Visit&& each) {
  int spatial = x.sizes.size() - 2;
  std::vector<int> out(spatial, 0), tap(spatial, 0);
  auto next = [&](std::vector<int>& at, const std::vector<int>& sizes) {
    for (int d = spatial - 1; d >= 0; --d) {
      if (++at[d] < sizes[2 + d]) return true;
      at[d] = 0;
    }
    return false;
  };
  int of_group = w.sizes[0] / g.groups;
  for (int n = 0; n < x.sizes[0]; ++n)
    for (int k = 0; k < w.sizes[0]; ++k)
      for (int c = 0; c < w.sizes[1]; ++c) {
        int channel = k / of_group * w.sizes[1] + c;
        do do {
          int64_t at_x = int64_t(n) * x.strides[0] + int64_t(channel) * x.strides[1];
          int64_t at_w = int64_t(k) * w.strides[0] + int64_t(c) * w.strides[1];
          int64_t at_y = int64_t(n) * y.strides[0] + int64_t(k) * y.strides[1];
          bool is_inside = true;
          for (int d = 0; d < spatial; ++d) {
            int place = out[d] * g.stride[d] - g.padding[d] + tap[d] * g.dilation[d];
            is_inside &= 0 <= place && place < x.sizes[2 + d];
            at_x += int64_t(place) * x.strides[2 + d];
            at_w += int64_t(tap[d]) * w.strides[2 + d];
            at_y += int64_t(out[d]) * y.strides[2 + d];
          }
          if (is_inside) each(at_x, at_w, at_y);
        } while (next(tap, w.sizes));
        while (next(out, y.sizes));
      }
}
void clear(Tensor& t, float* memory) {
  int64_t last = 0;
  for (size_t d = 0; d < t.sizes.size(); ++d) last += int64_t(t.sizes[d] - 1) * t.strides[d];
  memset(memory, 0, (last + 1) * 4);
}
int choose(int* count, void* found) {
  *static_cast<Performance*>(found) = Performance{1, 0, 0, 1024, 0, 3, {}};
  return *count = 1, 0;
}
}  // namespace

extern "C" {
int cudnnCreate(void** handle) { return *handle = handle, 0; }
int cudnnSetStream(void*, void*) { return 0; }
int cudnnCreateTensorDescriptor(void** made) { return *made = new Tensor, 0; }
int cudnnCreateFilterDescriptor(void** made) { return *made = new Tensor, 0; }
int cudnnCreateConvolutionDescriptor(void** made) { return *made = new Geometry, 0; }
int cudnnSetTensorNdDescriptor(void* made, int type, int rank, const int* sizes, const int* strides) {
  tensor(made) = {{sizes, sizes + rank}, {strides, strides + rank}};
  return type != 0 || rank < 4;
}
int cudnnSetFilterNdDescriptor(void* made, int type, int order, int rank, const int* sizes) {
  std::vector<int> strides(rank), dims;
  for (int d = 0; d < rank; ++d) dims.push_back(order == 0 || d == 0 ? d : d % (rank - 1) + 1);
  if (order == 1) for (int d = 1; d < rank; ++d) dims[d] = d < rank - 1 ? d + 1 : 1;
  int step = 1;
  for (int d = rank - 1; d >= 0; --d) { strides[dims[d]] = step; step *= sizes[dims[d]]; }
  tensor(made) = {{sizes, sizes + rank}, strides};
  return type != 0 || rank < 4;
}
int cudnnSetConvolutionNdDescriptor(void* made, int n, const int* padding, const int* stride, const int* dilation, int mode, int) {
  *static_cast<Geometry*>(made) = {{padding, padding + n}, {stride, stride + n}, {dilation, dilation + n}};
  return mode != 1;
}
int cudnnSetConvolutionGroupCount(void* made, int groups) { return static_cast<Geometry*>(made)->groups = groups, 0; }
int cudnnSetConvolutionMathType(void*, int) { return 0; }
int cudnnGetConvolutionForwardAlgorithm_v7(void*, void*, void*, void*, void*, int, int* count, void* found) { return choose(count, found); }
int cudnnGetConvolutionBackwardDataAlgorithm_v7(void*, void*, void*, void*, void*, int, int* count, void* found) { return choose(count, found); }
int cudnnGetConvolutionBackwardFilterAlgorithm_v7(void*, void*, void*, void*, void*, int, int* count, void* found) { return choose(count, found); }
int cudnnConvolutionForward(void*, const void*, void* x, float* images, void* w, float* filters, void* g, int, void*, size_t, const void*, void* y, float* results) {
  clear(tensor(y), results);
  visit(tensor(x), tensor(w), tensor(y), *static_cast<Geometry*>(g),
        [&](int64_t a, int64_t b, int64_t c) { results[c] += images[a] * filters[b]; });
  return 0;
}
int cudnnConvolutionBackwardData(void*, const void*, void* w, float* filters, void* y, float* results, void* g, int, void*, size_t, const void*, void* x, float* images) {
  clear(tensor(x), images);
  visit(tensor(x), tensor(w), tensor(y), *static_cast<Geometry*>(g),
        [&](int64_t a, int64_t b, int64_t c) { images[a] += results[c] * filters[b]; });
  return 0;
}
int cudnnConvolutionBackwardFilter(void*, const void*, void* x, float* images, void* y, float* results, void* g, int, void*, size_t, const void*, void* w, float* filters) {
  clear(tensor(w), filters);
  visit(tensor(x), tensor(w), tensor(y), *static_cast<Geometry*>(g),
        [&](int64_t a, int64_t b, int64_t c) { filters[b] += images[a] * results[c]; });
  return 0;
}
}
