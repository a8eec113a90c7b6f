// cuBLASLt over the host's memory: column-major products as its documentation says, one element after the other.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <map>

namespace {
struct Operation { std::map<int, uint64_t> attributes; int compute; };
struct Matrix { int type; uint64_t rows, columns; int64_t leading; int count = 1; int64_t stride = 0; };
using Address = const void*;

float from_bfloat16(uint16_t bits) { uint32_t wide = uint32_t(bits) << 16; float value; memcpy(&value, &wide, 4); return value; }
uint16_t to_bfloat16(float value) {
  uint32_t bits; memcpy(&bits, &value, 4);
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
double read(int type, Address base, int64_t at) {
  switch (type) {
    case 0: return static_cast<const float*>(base)[at];
    case 1: return static_cast<const double*>(base)[at];
    case 2: return float(static_cast<const _Float16*>(base)[at]);
    default: return from_bfloat16(static_cast<const uint16_t*>(base)[at]);
  }
}
void write(int type, void* base, int64_t at, double value) {
  switch (type) {
    case 0: static_cast<float*>(base)[at] = value; break;
    case 1: static_cast<double*>(base)[at] = value; break;
    case 2: static_cast<_Float16*>(base)[at] = _Float16(float(value)); break;
    default: static_cast<uint16_t*>(base)[at] = to_bfloat16(value);
  }
}
}  // namespace

extern "C" {
int cublasLtCreate(void** handle) { return *handle = handle, 0; }
int cublasLtMatmulDescCreate(void** made, int compute, int) { return *made = new Operation{{}, compute}, 0; }
int cublasLtMatmulDescSetAttribute(void* operation, int number, const void* value, size_t size) {
  uint64_t bits = 0;
  memcpy(&bits, value, size);
  static_cast<Operation*>(operation)->attributes[number] = bits;
  return (number == 8) != (size == 8) ? 7 : 0;
}
int cublasLtMatrixLayoutCreate(void** made, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *made = new Matrix{type, rows, columns, leading};
  return leading < int64_t(rows) ? 7 : 0;
}
int cublasLtMatrixLayoutSetAttribute(void* layout, int number, const void* value, size_t size) {
  auto* matrix = static_cast<Matrix*>(layout);
  if (number == 5 && size == 4) return memcpy(&matrix->count, value, 4), 0;
  if (number == 6 && size == 8) return memcpy(&matrix->stride, value, 8), 0;
  return 7;
}
int cublasLtMatmulPreferenceCreate(void** made) { return *made = made, 0; }
int cublasLtMatmulPreferenceSetAttribute(void*, int number, const void*, size_t size) {
  return size == (number == 1 ? 8 : 4) ? 0 : 7;
}
int cublasLtMatmulAlgoGetHeuristic(void*, void* operation, void* left, void* right, void*, void* result, void*, int, void*,
                                   int* found) {
  auto &a = *static_cast<Matrix*>(left), &b = *static_cast<Matrix*>(right), &d = *static_cast<Matrix*>(result);
  auto& attributes = static_cast<Operation*>(operation)->attributes;
  uint64_t m = attributes[3] ? a.columns : a.rows, k = attributes[3] ? a.rows : a.columns;
  uint64_t l = attributes[4] ? b.columns : b.rows, n = attributes[4] ? b.rows : b.columns;
  *found = m == d.rows && n == d.columns && k == l;
  return *found ? 0 : 15;
}
int cublasLtMatmul(void*, void* operation, const void*, uint64_t left, void* a_layout, uint64_t right, void* b_layout,
                   const void*, uint64_t, void*, uint64_t result, void* d_layout, void*, uint64_t, size_t, void*) {
  auto &a = *static_cast<Matrix*>(a_layout), &b = *static_cast<Matrix*>(b_layout), &d = *static_cast<Matrix*>(d_layout);
  auto& attributes = static_cast<Operation*>(operation)->attributes;
  bool is_a = attributes[3], is_b = attributes[4];
  uint64_t epilogue = attributes[7], depth = is_a ? a.rows : a.columns;
  for (int batch = 0; batch < d.count; ++batch)
    for (uint64_t column = 0; column < d.columns; ++column)
      for (uint64_t row = 0; row < d.rows; ++row) {
        double sum = 0;
        for (uint64_t k = 0; k < depth; ++k)
          sum += read(a.type, Address(left), batch * a.stride + (is_a ? row * a.leading + k : k * a.leading + row)) *
                 read(b.type, Address(right), batch * b.stride + (is_b ? k * b.leading + column : column * b.leading + k));
        if (epilogue & 4) sum += read(attributes[26], Address(attributes[8]), row);
        if (epilogue & 2) sum = sum > 0 ? sum : 0;
        if (epilogue & 32) sum = 0.5 * sum * (1 + std::tanh(0.7978845608028654 * (sum + 0.044715 * sum * sum * sum)));
        write(d.type, reinterpret_cast<void*>(result), batch * d.stride + column * d.leading + row, sum);
      }
  return 0;
}
}
