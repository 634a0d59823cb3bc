/* Input and output of the network; see network.h. Needs the C library's <math.h> alone. */
#include "network.h"

#include <math.h>

/* The int8 input for each pixel value, by channel:
   round((pixel - 255 * mean) / (255 * std) / $input_scale) + $input_zero */
static const int8_t quantised[HWNAS_CHANNELS][256] = {
$table
};

void hwnas_preprocess(const uint8_t *pixels, int8_t *input) {
  for (size_t i = 0; i < HWNAS_INPUTS; i++) {
    input[i] = quantised[i % HWNAS_CHANNELS][pixels[i]];
  }
}

/* Weight of input pixel i for an output pixel with this centre. */
static float weight(size_t i, float centre, float support) {
  return fmaxf(0.0f, 1.0f - fabsf(((float)i + 0.5f - centre) / support));
}

/* Resize the central square of an image. Like Pillow, it may begin between two pixels, and pixels
   beside it count at its edges. */
static void resize(const uint8_t *image, size_t height, size_t width, size_t rows, size_t columns,
                   uint8_t *pixels) {
  const size_t side = height < width ? height : width;
  const float top = (float)(height - side) / 2, left = (float)(width - side) / 2;
  const float step_y = (float)side / (float)rows, step_x = (float)side / (float)columns;
  const float support_y = fmaxf(step_y, 1.0f), support_x = fmaxf(step_x, 1.0f);
  for (size_t y = 0; y < rows; y++) {
    const float centre_y = top + ((float)y + 0.5f) * step_y;
    const size_t first_y = (size_t)fmaxf(0.0f, floorf(centre_y - support_y));
    const size_t end_y = (size_t)fminf((float)height, ceilf(centre_y + support_y));
    for (size_t x = 0; x < columns; x++) {
      const float centre_x = left + ((float)x + 0.5f) * step_x;
      const size_t first_x = (size_t)fmaxf(0.0f, floorf(centre_x - support_x));
      const size_t end_x = (size_t)fminf((float)width, ceilf(centre_x + support_x));
      float sums[HWNAS_CHANNELS] = {0}, total = 0;
      for (size_t i = first_y; i < end_y; i++) {
        for (size_t j = first_x; j < end_x; j++) {
          const float w = weight(i, centre_y, support_y) * weight(j, centre_x, support_x);
          const uint8_t *pixel = image + (i * width + j) * HWNAS_CHANNELS;
          total += w;
          for (size_t c = 0; c < HWNAS_CHANNELS; c++) sums[c] += w * (float)pixel[c];
        }
      }
      uint8_t *pixel = pixels + (y * columns + x) * HWNAS_CHANNELS;
      for (size_t c = 0; c < HWNAS_CHANNELS; c++) pixel[c] = (uint8_t)lroundf(sums[c] / total);
    }
  }
}

void hwnas_resize(const uint8_t *image, size_t height, size_t width, uint8_t *pixels) {
#if HWNAS_DECODED != HWNAS_HEIGHT || HWNAS_DECODED != HWNAS_WIDTH
  /* The training images were resized twice: to the size in which they are stored, and to the input. */
  static uint8_t decoded[HWNAS_DECODED * HWNAS_DECODED * HWNAS_CHANNELS];
  resize(image, height, width, HWNAS_DECODED, HWNAS_DECODED, decoded);
  resize(decoded, HWNAS_DECODED, HWNAS_DECODED, HWNAS_HEIGHT, HWNAS_WIDTH, pixels);
#else
  resize(image, height, width, HWNAS_HEIGHT, HWNAS_WIDTH, pixels);
#endif
}

void hwnas_dequantise(const int8_t *output, float *values) {
  for (size_t i = 0; i < HWNAS_OUTPUTS; i++) {
    values[i] = (float)(output[i] - ($output_zero)) * ${output_scale}f;
  }
}
$definitions
