// Signals: Fourier transforms, windows, Mel filters; and random numbers, which are refused.

#include <cmath>
#include <numbers>
#include <numeric>

#include "modules/onnx/call.h"

namespace brrr::onnx {
namespace {

// -- Fourier transforms
// ---------------------------------------------------------------------------

// A transform of more points is split into two shorter ones where it can be.
constexpr int64_t kLargestDirect = 128, kLargestPrime = 2048;

struct Transform {
  int64_t points = 0;
  int64_t wanted = 0;  // of the results, from 0 on
  double sign = -1;    // of the exponent; 1: the inverse
};

double angle_of(int64_t t, int64_t k, int64_t points) {
  return 2 * std::numbers::pi * static_cast<double>(t * k % points) / static_cast<double>(points);
}

/// The matrix [points P, wanted 2] that takes (t, real or imaginary) to (k, real or imaginary).
Value transform_matrix(Call& c, const Transform& f, int64_t parts, DType dtype) {
  RefTensor m(Type{dtype, {f.points * parts, f.wanted * 2}});
  size_t at = 0;
  for (int64_t t = 0; t < f.points; ++t)
    for (int64_t part = 0; part < parts; ++part)
      for (int64_t k = 0; k < f.wanted; ++k) {
        const double cos = std::cos(angle_of(t, k, f.points)),
                     sin = f.sign * std::sin(angle_of(t, k, f.points));
        m.data[at++] = part == 0 ? cos : -sin;
        m.data[at++] = part == 0 ? sin : cos;
      }
  return c.lowering().constant(m);
}

/// x: [R, n, 1 or 2] -> [R, wanted, 2]
Value direct_transform(Call& c, Value x, const Transform& f) {
  const int64_t rows = x.shape().size(0), parts = x.shape().size(2);
  const Value matrix = transform_matrix(c, f, parts, x.dtype());
  return reshape(matmul(reshape(x, {rows, f.points * parts}), matrix), {rows, f.wanted, 2});
}

/// The largest divisor up to the root; 1 of a prime.
int64_t divisor_of(int64_t n) {
  for (int64_t d = static_cast<int64_t>(std::sqrt(static_cast<double>(n))); d > 1; --d)
    if (n % d == 0) return d;
  return 1;
}

/// x [R, b, a, 2] times e^(sign i 2 pi t k / n) at (t, k).
Value twiddled(Call& c, Value x, const Transform& f) {
  const int64_t rows = x.shape().size(0), b = x.shape().size(1), a = x.shape().size(2);
  RefTensor cos(Type{x.dtype(), {b, a}}), sin(Type{x.dtype(), {b, a}});
  for (int64_t t = 0; t < b; ++t)
    for (int64_t k = 0; k < a; ++k) {
      cos.data[static_cast<size_t>(t * a + k)] = std::cos(angle_of(t, k, f.points));
      sin.data[static_cast<size_t>(t * a + k)] = f.sign * std::sin(angle_of(t, k, f.points));
    }
  const Value u = c.lowering().constant(cos), v = c.lowering().constant(sin);
  const Value re = reshape(slice(x, 3, 0, 1), {rows, b, a}),
              im = reshape(slice(x, 3, 1, 1), {rows, b, a});
  const std::vector<Value> parts{reshape(re * u - im * v, {rows, b, a, 1}),
                                 reshape(re * v + im * u, {rows, b, a, 1})};
  return concat(parts, 3);
}

/// x: [R, n, 1 or 2] -> [R, wanted, 2]. With n = a b, t = t1 b + t2 and k = k1 + a k2: a transform
/// over t1, a turn by t2 k1, a transform over t2.
Value transform(Call& c, Value x, const Transform& f) {
  const int64_t rows = x.shape().size(0), n = f.points, parts = x.shape().size(2);
  const int64_t a = n <= kLargestDirect ? 1 : divisor_of(n), b = n / a;
  if (a == 1) {
    if (n > kLargestPrime) c.refuse("a Fourier transform of {} points, which are a prime", n);
    return direct_transform(c, x, f);
  }
  const Value by_t2 = transpose(reshape(x, {rows, a, b, parts}), {0, 2, 1, 3});
  Value y = transform(c, reshape(by_t2, {rows * b, a, parts}), {a, a, f.sign});
  y = transpose(twiddled(c, reshape(y, {rows, b, a, 2}), f), {0, 2, 1, 3});
  y = reshape(transform(c, reshape(y, {rows * a, b, 2}), {b, b, f.sign}), {rows, a, b, 2});
  y = reshape(transpose(y, {0, 2, 1, 3}), {rows, n, 2});
  return f.wanted == n ? y : slice(y, 1, 0, f.wanted);
}

/// An axis cut or filled with zeros.
Value cut_or_filled(Value x, int axis, int64_t size) {
  const int64_t own = x.shape().size(axis);
  if (own > size) return slice(x, axis, 0, size);
  return own < size ? pad(x, axis, 0, size - own) : x;
}

/// The rest of the spectrum of a real signal: [R, n / 2 + 1, 2] -> [R, n, 2].
Value mirrored(Call& c, Value x, int64_t n) {
  std::vector<Number> ids, signs;
  for (int64_t k = 0; k < n; ++k) {
    const bool is_given = k <= n / 2;
    ids.emplace_back(is_given ? k : n - k);
    signs.emplace_back(1.0);
    signs.emplace_back(is_given ? 1.0 : -1.0);
  }
  return gather(x, literal(c.graph(), {n}, ids, DType::i64), 1) *
         literal(c.graph(), {n, 2}, signs, x.dtype());
}

struct Spectrum {
  std::optional<int64_t> points;
  bool inverse = false, onesided = false;
};

/// Along an axis of x [..., 1 or 2].
Value spectrum(Call& c, Value x, int axis, const Spectrum& s) {
  const DType dtype = x.dtype();
  const int rank = x.shape().rank();
  const int64_t parts = x.shape().size(-1);
  if (axis == rank - 1 || parts < 1 || parts > 2)
    c.fail("expected real and imaginary parts in the last axis; got {}, axis {}", x.type().str(),
           axis);
  const bool real = s.inverse && s.onesided;
  const int64_t own = x.shape().size(axis);
  const int64_t n = s.points.value_or(real ? 2 * (own - 1) : own);
  if (n < 1) c.fail("a transform of {} points", n);
  std::vector<int64_t> order(static_cast<size_t>(rank));
  std::iota(order.begin(), order.end(), 0);
  std::swap(order[static_cast<size_t>(axis)], order[static_cast<size_t>(rank - 2)]);
  if (dtype != DType::f64) x = cast(x, DType::f32);
  x = transpose(cut_or_filled(x, axis, real ? n / 2 + 1 : n), order);
  Shape shape = x.shape();
  int64_t rows = 1;
  for (int a = 0; a < rank - 2; ++a) rows *= shape.size(a);
  x = reshape(x, {rows, shape.size(-2), parts});
  if (real) x = mirrored(c, cut_or_filled(x, 2, 2), n);
  const int64_t wanted = s.onesided && !s.inverse ? n / 2 + 1 : n;
  Value y = transform(c, x, {n, wanted, s.inverse ? 1.0 : -1.0});
  if (s.inverse) y = y / static_cast<double>(n);
  if (real) y = slice(y, 2, 0, 1);
  shape[-2] = Dim(wanted);
  shape[-1] = Dim(real ? 1 : 2);
  return cast(transpose(reshape(y, shape), order), dtype);
}

void fourier_transform(Call& c) {
  const Value x = c.in(0);
  Spectrum s;
  s.inverse = c.integer("inverse", 0) != 0;
  s.onesided = c.integer("onesided", 0) != 0;
  if (c.has(1)) s.points = c.known_integer(1);
  int64_t axis = c.opset() >= 20 ? -2 : c.integer("axis", 1);
  if (c.opset() >= 20 && c.has(2)) axis = c.known_integer(2);
  c.out(spectrum(c, x, static_cast<int>(c.axis(axis, x.shape().rank())), s));
}

/// The frames of a signal [B, N, 1 or 2], weighted, each transformed.
void short_time_transform(Call& c) {
  const Value x = c.in(0);
  if (x.shape().rank() != 3) c.fail("expected a signal [B, N, 1 or 2]; got {}", x.type().str());
  const int64_t step = c.known_integer(1), size = x.shape().size(1);
  const int64_t length = c.has(3) ? c.known_integer(3) : c.has(2) ? c.in(2).shape().size(0) : size;
  if (step < 1 || length < 1 || length > size)
    c.fail("frames of {}, {} apart, of {}", length, step, x.type().str());
  const int64_t frames = 1 + (size - length) / step;
  const Shape places{frames, length};
  const Value at = iota(c.graph(), places, 0, DType::i64) * c.scalar(step, DType::i64) +
                   iota(c.graph(), places, 1, DType::i64);
  Value y = gather(x, at, 1);
  if (c.has(2)) {
    if (c.in(2).shape().elements() != length)
      c.fail("the window is {}, a frame has {}", c.in(2).type().str(), length);
    y = y * reshape(c.in(2), {length, 1});
  }
  c.out(spectrum(c, y, 2, {.points = length, .onesided = c.integer("onesided", 1) != 0}));
}

// -- windows and filters
// --------------------------------------------------------------------------

/// `a` + `b` cos(2 pi i / n) + `d` cos(4 pi i / n)
void window(Call& c, double a, double b, double d) {
  const int64_t size = c.known_integer(0);
  if (size < 0 || size > (int64_t{1} << 24)) c.fail("a window of {}", size);
  const int64_t n = c.integer("periodic", 1) != 0 ? size : size - 1;
  RefTensor w(Type{c.dtype("output_datatype", DType::f32), {size}});
  for (int64_t i = 0; i < size; ++i) {
    const double angle =
        n == 0 ? 0 : 2 * std::numbers::pi * static_cast<double>(i) / static_cast<double>(n);
    w.set_number(static_cast<size_t>(i), a + b * std::cos(angle) + d * std::cos(2 * angle));
  }
  c.out(c.lowering().constant(w));
}

void hann_window(Call& c) { window(c, 0.5, -0.5, 0); }
void hamming_window(Call& c) { window(c, 25.0 / 46, 25.0 / 46 - 1, 0); }
void blackman_window(Call& c) { window(c, 0.42, -0.5, 0.08); }

/// Triangles over the bins of a spectrum, at distances that are equal on the Mel scale.
void mel_weight_matrix(Call& c) {
  const int64_t filters = c.known_integer(0), length = c.known_integer(1),
                rate = c.known_integer(2), bins = length / 2 + 1;
  if (filters < 1 || length < 1 || rate < 1 || filters > 65536 || length > (1 << 20))
    c.fail("{} filters of {} points at {} Hz", filters, length, rate);
  const auto mel = [](double hertz) { return 2595 * std::log10(1 + hertz / 700); };
  const double low = mel(c.known_number(3)), high = mel(c.known_number(4));
  std::vector<int64_t> edges;
  for (int64_t i = 0; i < filters + 2; ++i) {
    const double at =
        low + static_cast<double>(i) * (high - low) / static_cast<double>(filters + 2);
    const double hertz = 700 * (std::pow(10, at / 2595) - 1);
    const double bin =
        std::floor(static_cast<double>(length + 1) * hertz / static_cast<double>(rate));
    if (!(bin >= 0) || bin >= static_cast<double>(bins)) c.fail("an edge lies at bin {}", bin);
    edges.push_back(static_cast<int64_t>(bin));
  }
  RefTensor w(Type{c.dtype("output_datatype", DType::f32), {bins, filters}});
  for (int64_t i = 0; i < filters; ++i) {
    const auto e = edges.begin() + i;
    const auto set = [&](int64_t bin, int64_t part, int64_t whole) {
      w.set_number(static_cast<size_t>(bin * filters + i),
                   static_cast<double>(part) / static_cast<double>(whole));
    };
    if (e[1] == e[0]) set(e[1], 1, 1);
    for (int64_t bin = e[0]; e[1] > e[0] && bin <= e[1]; ++bin) set(bin, bin - e[0], e[1] - e[0]);
    for (int64_t bin = e[1]; bin < e[2]; ++bin) set(bin, e[2] - bin, e[2] - e[1]);
  }
  c.out(c.lowering().constant(w));
}

// -- random numbers
// -------------------------------------------------------------------------------

void random_numbers(Call& c) {
  c.refuse("ONNX does not say which random numbers an operator draws");
}

const OperatorRow kSignalRows[] = {
    {"", "DFT", fourier_transform},          {"", "STFT", short_time_transform},
    {"", "HannWindow", hann_window},         {"", "HammingWindow", hamming_window},
    {"", "BlackmanWindow", blackman_window}, {"", "MelWeightMatrix", mel_weight_matrix},
    {"", "Bernoulli", random_numbers},       {"", "Multinomial", random_numbers},
    {"", "RandomNormal", random_numbers},    {"", "RandomNormalLike", random_numbers},
    {"", "RandomUniform", random_numbers},   {"", "RandomUniformLike", random_numbers},
};

}  // namespace

std::span<const OperatorRow> signal_operators() { return kSignalRows; }

}  // namespace brrr::onnx
