// The parts that ../page.js draws with. What is not named here is not in the page.
import { init, use } from 'echarts/core';
import { BarChart, LineChart, ScatterChart, TreemapChart } from 'echarts/charts';
import { GridComponent, MarkLineComponent, TooltipComponent } from 'echarts/components';
import { LabelLayout } from 'echarts/features';
import { SVGRenderer } from 'echarts/renderers';

use([BarChart, LineChart, ScatterChart, TreemapChart, GridComponent, MarkLineComponent, TooltipComponent, LabelLayout, SVGRenderer]);
globalThis.echarts = { init };
