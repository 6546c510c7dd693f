// Makes ../echarts.js of parts.js: `npm ci && npm run build`. The versions are those of package-lock.json, so the same
// bytes come out everywhere; `npm run build -- --check` only compares.
import { build } from 'esbuild';
import { dirname } from 'node:path';
import { readFileSync, writeFileSync } from 'node:fs';

const here = (path) => new URL(path, import.meta.url);
const text = (path) => readFileSync(here(`node_modules/${path}`), 'utf8').trim();
const version = (name) => JSON.parse(text(`${name}/package.json`)).version;

const banner = `/*!
Parts of Apache ECharts ${version('echarts')}, put together and minified by esbuild, in English only; not changed otherwise.

${text('echarts/NOTICE')}

Licensed under the Apache License, Version 2.0 (the "License"); you may not use this file except in compliance with the
License. You may obtain a copy of the License at http://www.apache.org/licenses/LICENSE-2.0. Unless required by applicable
law or agreed to in writing, software distributed under the License is distributed on an "AS IS" BASIS, WITHOUT WARRANTIES
OR CONDITIONS OF ANY KIND, either express or implied. See the License for the specific language governing permissions and
limitations under the License.

In it, under their own licences:

zrender ${version('zrender')}: ${text('zrender/LICENSE')}

d3 (layout of the treemap, parts of the arithmetic): ${text('echarts/licenses/LICENSE-d3')}

tslib ${version('tslib')}: ${text('tslib/LICENSE.txt')}
*/`;

const result = await build({
  entryPoints: [here('parts.js').pathname],
  bundle: true,
  minify: true,
  format: 'iife',
  target: 'es2020',
  legalComments: 'none',
  banner: { js: banner.replaceAll('\r', '') },
  define: { 'process.env.NODE_ENV': '"production"' },
  // Reports are in English.
  plugins: [{
    name: 'one-language',
    setup: ({ onLoad }) => onLoad({ filter: /i18n\/langZH\.js$/ }, ({ path }) => ({
      contents: "export { default } from './langEN.js';",
      resolveDir: dirname(path),
    })),
  }],
  write: false,
});
const made = result.outputFiles[0].text.replace(/<(?=\/script|!--|script)/gi, '\\x3C');
const target = here('../echarts.js');
if (process.argv.includes('--check')) {
  if (readFileSync(target, 'utf8') !== made) throw new Error('../echarts.js is not what package-lock.json makes: run npm run build');
} else {
  writeFileSync(target, made);
}
console.log(`echarts.js: ${Buffer.byteLength(made)} bytes`);
