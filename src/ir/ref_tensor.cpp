#include "ir/ref_tensor.h"

#include "base/errors.h"

namespace brrr {

RefTensor::RefTensor(Type of_type) : type(std::move(of_type)) {
  visit([&](auto& elements) { elements.resize(static_cast<size_t>(type.shape.elements())); });
}

RefTensor::RefTensor(Type of_type, std::vector<double> values) : type(std::move(of_type)) {
  visit([&]<typename T>(std::vector<T>& elements) {
    if constexpr (std::is_same_v<T, double>)
      elements = std::move(values);
    else
      for (const double x : values)
        elements.push_back(static_cast<T>(integer_from_double(type.dtype, x)));
  });
}

size_t RefTensor::size() const {
  return visit([](const auto& elements) { return elements.size(); });
}

void RefTensor::copy_elements(const RefTensor& from) {
  BRRR_CHECK(type.dtype == from.type.dtype, "elements of {} for {}", from.type.str(), type.str());
  data = from.data;
  signed_data = from.signed_data;
  unsigned_data = from.unsigned_data;
}

uint64_t RefTensor::bits(size_t i) const {
  return visit([&]<typename T>(const std::vector<T>& elements) {
    if constexpr (!std::is_same_v<T, double>) return static_cast<uint64_t>(elements[i]);
    return static_cast<uint64_t>(static_cast<int64_t>(elements[i]));
  });
}

void RefTensor::set_bits(size_t i, uint64_t bits) {
  const DType dtype = type.dtype;
  visit([&]<typename T>(std::vector<T>& elements) {
    if constexpr (!std::is_same_v<T, double>)
      elements[i] = static_cast<T>(bits);
    else if (dtype == DType::boolean)
      elements[i] = bits != 0;
    else
      elements[i] = double_from_integer(dtype, wrapped_to(dtype, bits));
  });
}

double RefTensor::number(size_t i) const {
  return visit([&](const auto& elements) { return static_cast<double>(elements[i]); });
}

void RefTensor::set_number(size_t i, double value) {
  if (is_integer(type.dtype))
    set_bits(i, integer_from_double(type.dtype, value));
  else
    data[i] = value;
}

RefTensor read_tensor(const Type& type, const void* from) {
  RefTensor t(type);
  if (is_float(type.dtype) || !type.storage.is_plain()) {
    read_floats(type.storage, type.dtype, type.shape, from, t.data);
    return t;
  }
  for (size_t i = 0; i < t.size(); ++i)
    t.set_bits(i, load_integer(type.dtype, from, static_cast<int64_t>(i)));
  return t;
}

void write_tensor(const RefTensor& tensor, void* to) {
  const auto& [dtype, shape, storage] = tensor.type;
  if (is_float(dtype) || !storage.is_plain())
    return write_floats(storage, dtype, shape, tensor.data, to);
  for (size_t i = 0; i < tensor.size(); ++i)
    store_integer(dtype, to, static_cast<int64_t>(i), tensor.bits(i));
}

}  // namespace brrr
